// Background operations: answered at once, at work in a log of their own, and their end is told in the session.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { endsOnce, generations, page, parse } from '../lib/generations.mjs';
import { Server, until } from '../lib/server.mjs';
import { Socket } from '../lib/socket.mjs';
import { bytesOf, chunksOf, peek, read } from '../lib/sse.mjs';
import { Wire } from '../lib/wire.mjs';

async function observed(t) {
    const server = await Server.start(t);
    const session = await server.newSession();
    const socket = await Socket.open(t, server);
    socket.send({ event: 'user.reconnect', session_id: session, content: { mode: 'observe' } });
    await socket.await((frame) => frame.event === 'agent.session_created');
    const operate = (body, headers) => server.call('POST', `/api/chat/sessions/${session}/operations`, body, headers);
    const completed = () => socket.await((frame) => frame.event === 'agent.operation_completed');
    return { server, session, socket, operate, completed };
}

test('202 at once, progress in its own log, and the completion is told in the session', async (t) => {
    const { server, session, socket, operate, completed } = await observed(t);
    const begun = await operate({ tool_name: 'demo', arguments: { steps: 5, delay_ms: 30 } });
    assert.equal(begun.status, 202);
    const { type, tool_name, operation_id, task_id, message } = begun.body;
    assert.deepEqual([type, tool_name], ['operation_started', 'demo']);
    assert.ok(operation_id && task_id && message);
    assert.equal((await server.task(task_id)).status, 'running');
    const { status, active_stream, active_streams } = await server.session(session);
    assert.equal(status, 'running', 'an operation is work of the session');
    assert.equal(active_stream.operation_id, operation_id);
    assert.deepEqual(active_streams, [active_stream]);
    const started = await socket.await((frame) => frame.event === 'agent.operation_started');
    assert.equal(started.content.operation_id, operation_id);
    const stream = await read(`${server.origin}/api/chat/tasks/${task_id}/stream`);
    endsOnce(chunksOf(stream.frames));
    assert.ok(chunksOf(stream.frames).filter(({ type }) => type.startsWith('data-')).length >= 5);
    for (const generation of generations) {
        const { message, errors } = await parse(generation, bytesOf(stream.frames));
        assert.deepEqual(errors, []);
        const { toolCallId, state, input, output } = message.parts.find(({ type }) => type === 'tool-demo');
        assert.deepEqual([toolCallId, state], [operation_id, 'output-available']);
        assert.deepEqual([input, output], [{ steps: 5, delay_ms: 30 }, { tool: 'demo', steps: 5 }]);
    }
    const told = await completed();
    assert.equal(told.content.operation_id, operation_id);
    assert.equal(told.content.status, 'completed');
    const task = await server.task(task_id);
    assert.equal(task.status, 'completed');
    assert.equal(task.operation_id, operation_id);
    assert.deepEqual(task.result, { tool: 'demo', steps: 5 });
    assert.equal((await server.session(session)).active_stream, null);
});

test('the same tool_call_id is one operation, however it is repeated; with other arguments it is a conflict', async (t) => {
    const { server, socket, session, operate, completed } = await observed(t);
    const order = { tool_name: 'demo', arguments: { steps: 3, delay_ms: 5 }, tool_call_id: 'call-1' };
    const all = await Promise.all(Array.from({ length: 10 }, () => operate(order)));
    assert.deepEqual(new Set(all.map(({ status }) => status)), new Set([202]));
    assert.equal(new Set(all.map(({ body }) => body.operation_id)).size, 1);
    await completed();
    assert.equal((await operate(order)).body.operation_id, all[0].body.operation_id);
    const { tool_call_id, ...keyless } = order;
    // A key of the request finds it too, from the first time that it came with the call.
    for (const body of [order, keyless])
        assert.equal((await operate(body, { 'idempotency-key': 'key-1' })).body.operation_id, all[0].body.operation_id);
    const conflict = await operate({ ...order, arguments: { steps: 4 } });
    assert.equal(conflict.status, 409);
    assert.equal(conflict.body.code, 'IDEMPOTENCY_CONFLICT');
    assert.equal((await operate({ ...order, tool_call_id: 'call-2', tool_name: 'unknown' })).status, 400);

    // A swallowed answer, and the request again.
    const wire = await Wire.open(t, server);
    const post = () =>
        fetch(`${wire.origin}/api/chat/sessions/${session}/operations`, {
            method: 'POST',
            body: JSON.stringify({ ...order, tool_call_id: 'call-3' }),
        });
    wire.swallowAnswer();
    await assert.rejects(post());
    const { operation_id } = await (await post()).json();
    await socket.await((frame) => frame.event === 'agent.operation_completed' && frame.content.operation_id === operation_id);
    const begun = socket.frames.filter(({ event }) => event === 'agent.operation_started');
    assert.equal(begun.length, 2, 'two calls, two operations');
});

test('completion by webhook, for work that a program outside does', async (t) => {
    const { server, session, completed } = await observed(t);
    const make = (fields) => server.call('POST', '/api/chat/tasks', { session_id: session, tool_name: 'render', ...fields });
    const done = (id, body) => server.call('POST', `/api/chat/operations/${id}/complete`, body);
    const first = (await make({})).body;
    const answered = await done(first.operation_id, { success: true, result: { frames: 24 } });
    assert.equal(answered.status, 200);
    assert.equal(answered.body.status, 'completed');
    const told = await completed();
    assert.deepEqual([told.content.operation_id, told.content.result], [first.operation_id, { frames: 24 }]);
    assert.deepEqual((await done(first.operation_id, { success: true, result: { frames: 24 } })).body, answered.body);
    assert.equal((await done(first.operation_id, { success: false, error: 'no' })).status, 409);

    const named = (await make({ operation_id: 'render-7' })).body;
    assert.equal(named.operation_id, 'render-7');
    assert.equal((await make({ operation_id: 'render-7' })).body.task_id, named.task_id, 'the same name is one task');
    await done('render-7', { success: false, error: 'out of film' });
    const failed = await completed();
    assert.deepEqual([failed.content.operation_id, failed.content.status], ['render-7', 'failed']);
    assert.equal(failed.content.error.message, 'out of film');
    const outcomes = [
        [first, 'output-available', { frames: 24 }],
        [named, 'output-error', 'out of film'],
    ];
    for (const [{ task_id, operation_id }, state, outcome] of outcomes) {
        const { frames } = await read(`${server.origin}/api/chat/tasks/${task_id}/stream`);
        endsOnce(chunksOf(frames));
        for (const generation of generations) {
            const call = (await parse(generation, bytesOf(frames))).message.parts.find(({ type }) => type === 'tool-render');
            assert.deepEqual([call.toolCallId, call.state, call.output ?? call.errorText], [operation_id, state, outcome]);
        }
    }
    assert.equal((await done('op_unknown', { success: true })).status, 404);
});

test('a cancelled operation stops, ends with abort, and the session is told', async (t) => {
    const { server, operate, completed } = await observed(t);
    const { body } = await operate({ tool_name: 'demo', arguments: { steps: 100000, delay_ms: 5 } });
    const where = `${server.origin}/api/chat/tasks/${body.task_id}/stream`;
    await peek(where, 6);
    const reading = read(where);
    const cancelled = await server.call('POST', `/api/chat/tasks/${body.task_id}/cancel`, {});
    assert.deepEqual(cancelled.body, { cancelled: true, status: 'cancelled' });
    const { frames } = await reading;
    endsOnce(chunksOf(frames), 'abort');
    assert.equal(chunksOf(frames).at(-2).type, 'tool-output-error');
    assert.equal((await completed()).content.status, 'cancelled');
    const last = (await server.task(body.task_id)).last_message_id;
    assert.equal((await read(where, { headers: { 'last-event-id': last } })).status, 204);
});

for (const generation of generations) {
    test(`an operation that a turn begins is a finished tool call of the message: ${generation.name}`, async (t) => {
        const server = await Server.start(t);
        const { chat, chunks } = page(generation, server.origin, { id: 'chat-1' });
        await chat.sendMessage({ text: '/op demo 4 10' });
        endsOnce(chunks);
        const call = chat.lastMessage.parts.find((part) => part.type === 'tool-demo');
        assert.equal(call.state, 'output-available');
        assert.deepEqual(call.input, { steps: 4, delay_ms: 10 });
        assert.equal(call.output.type, 'operation_started');
        const task = await until('the operation has ended', async () => {
            const task = await server.task(call.output.task_id);
            return task.status !== 'running' && task;
        });
        assert.equal(task.status, 'completed');
        // Its end is told behind the turn, and the next turn is not disturbed by it.
        await chat.sendMessage({ text: '/echo next' });
        assert.deepEqual(chat.lastMessage.parts.map(({ type }) => type), ['step-start', 'text']);
    });
}
