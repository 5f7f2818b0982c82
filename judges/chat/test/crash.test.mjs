// kill -9 in the middle: after the restart every run has an honest end, nothing that was seen is gone, and what can go on does.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { endsOnce, generations, identical, inHistory, page, parse, said, textOf } from '../lib/generations.mjs';
import { Server, until } from '../lib/server.mjs';
import { bytesOf, chunksOf, peek, read } from '../lib/sse.mjs';
import { Socket } from '../lib/socket.mjs';

const deltas = (frames) =>
    chunksOf(frames)
        .filter(({ type }) => type === 'text-delta')
        .map(({ delta }) => delta)
        .join('');

for (const generation of generations) {
    test(`a turn that is cut by a kill is ended, with what was said: ${generation.name}`, async (t) => {
        const server = await Server.start(t);
        const { chat } = page(generation, server.origin, { id: 'chat-1' });
        const message = said('m-1', '/long 100000 2');
        const sent = chat.sendMessage(message);
        await until('some words are there', () => textOf(chat.lastMessage).includes('tok40'));
        await server.killAndRestart();
        await sent;
        assert.equal(chat.status, 'error');
        const partial = textOf(chat.lastMessage);

        const task = await server.task(chat.lastMessage.id);
        assert.equal(task.status, 'failed');
        assert.equal(task.error.code, 'AGENT_LOST');
        assert.ok(task.finished_at);
        const whole = await read(`${server.origin}/api/chat/tasks/${task.task_id}/stream?fold=0`);
        assert.ok(whole.done);
        endsOnce(chunksOf(whole.frames));
        assert.deepEqual(chunksOf(whole.frames).slice(-2).map(({ type }) => type), ['error', 'finish']);
        const told = deltas(whole.frames);
        assert.ok(told.startsWith(partial), 'nothing that was seen is gone');

        // A reloaded page: nothing runs, and the history has the partial answer.
        const { messages, status } = await server.session(task.session_id);
        assert.equal(status, 'idle');
        assert.equal(messages.length, 2);
        assert.equal(messages[1].metadata.interrupted, true);
        assert.equal(textOf(messages[1]), told);
        await generation.ai.validateUIMessages({ messages });
        const reloaded = page(generation, server.origin, { id: 'chat-1', messages });
        await reloaded.chat.resumeStream();
        assert.equal(reloaded.chat.messages.length, 2);
        assert.deepEqual(reloaded.chunks, []);
        const parsed = await parse(generation, bytesOf(whole.frames));
        inHistory(parsed.message, messages[1]);

        // The proxy repeats the request: it is told what became of it, and nothing runs.
        const repeated = page(generation, server.origin, { id: 'chat-1' });
        await repeated.chat.sendMessage(message);
        identical(repeated.chat.lastMessage, parsed.message);
        assert.equal((await server.session(task.session_id)).messages.length, 2);

        // The chat goes on.
        await reloaded.chat.sendMessage({ text: '/recall' });
        assert.equal(textOf(reloaded.chat.lastMessage), '/long 100000 2');
    });
}

test('the same parser reads over the kill: its cursor still means the same', async (t) => {
    const server = await Server.start(t);
    const session = await server.newSession();
    const start = { method: 'POST', body: JSON.stringify({ message: '/long 100000 2', message_id: 'm-1' }) };
    const before = await peek(`${server.origin}/api/chat/sessions/${session}/stream`, 50, start);
    await server.killAndRestart();
    const where = `${server.origin}/api/chat/tasks/${before[0].chunk.messageId}/stream`;
    const after = await read(where, { headers: { 'last-event-id': before.at(-1).id } });
    const whole = await read(`${where}?fold=0`);
    assert.deepEqual([...before, ...after.frames], whole.frames);
    endsOnce(chunksOf(whole.frames));
    const end = whole.frames.at(-1).id;
    assert.equal((await read(where, { headers: { 'last-event-id': end } })).status, 204);
});

test('a question survives the kill, and its answer ends the turn', async (t) => {
    const server = await Server.start(t);
    const { chat } = page(generations[2], server.origin, { id: 'chat-1' });
    const sent = chat.sendMessage(said('m-1', '/confirm jibe'));
    const asked = await until('the question is there', () =>
        chat.lastMessage?.parts.find((part) => part.type === 'data-user_confirm'),
    );
    await server.killAndRestart();
    await sent;
    const task = await server.task(chat.lastMessage.id);
    assert.equal(task.status, 'running');
    const reloaded = page(generations[2], server.origin, { id: 'chat-1', messages: [said('m-1', '/confirm jibe')] });
    const resumed = reloaded.chat.resumeStream();
    await until('the question is there again', () =>
        reloaded.chat.lastMessage?.parts.find((part) => part.data?.step_id === asked.data.step_id),
    );
    const answer = { step_id: asked.data.step_id, confirmed: true };
    await server.call('POST', `/api/chat/sessions/${task.session_id}/respond`, answer);
    await resumed;
    endsOnce(reloaded.chunks);
    assert.equal(textOf(reloaded.chat.lastMessage), 'confirmed: jibe');
});

test('a producer’s task survives the kill and goes on, and a repeated append is known', async (t) => {
    const server = await Server.start(t);
    const { body } = await server.call('POST', '/api/chat/tasks', { tool_name: 'essay' });
    const where = `/api/chat/tasks/${body.task_id}`;
    const append = (seq, chunks) =>
        server.call('POST', `${where}/messages`, chunks, { 'producer-id': 'p', 'producer-seq': String(seq) });
    const first = [{ type: 'text-start', id: 'a' }, { type: 'text-delta', id: 'a', delta: 'before ' }];
    const answered = await append(0, first);
    assert.equal(answered.status, 200);
    await server.killAndRestart();
    assert.equal((await server.task(body.task_id)).status, 'running');
    assert.deepEqual((await append(0, first)).body, answered.body, 'the same answer for the same append');
    assert.equal((await append(2, first)).status, 409, 'a hole is a hole, also after a restart');
    const reading = read(`${server.origin}${where}/stream?fold=0`);
    await append(1, [{ type: 'text-delta', id: 'a', delta: 'after' }, { type: 'text-end', id: 'a' }]);
    await server.call('POST', `${where}/complete`, { success: true, result: { pages: 2 } });
    const { frames } = await reading;
    assert.equal(deltas(frames), 'before after');
    endsOnce(chunksOf(frames));
    assert.deepEqual((await server.task(body.task_id)).result, { pages: 2 });
    for (const generation of generations) {
        const { message, errors } = await parse(generation, bytesOf(frames));
        assert.deepEqual(errors, []);
        assert.equal(textOf(message), 'before after');
    }
});

test('a background operation of the agent’s that is cut by a kill has failed, and its session is told once', async (t) => {
    const server = await Server.start(t);
    const session = await server.newSession();
    const order = { tool_name: 'demo', arguments: { steps: 100000, delay_ms: 5 }, tool_call_id: 'call-1' };
    const { body } = await server.call('POST', `/api/chat/sessions/${session}/operations`, order);
    await peek(`${server.origin}/api/chat/tasks/${body.task_id}/stream`, 6);
    await server.killAndRestart();
    const task = await until('the task has ended', async () => {
        const task = await server.task(body.task_id);
        return task.status !== 'running' && task;
    });
    assert.equal(task.status, 'failed');
    assert.equal(task.error.code, 'AGENT_LOST');
    const { frames } = await read(`${server.origin}/api/chat/tasks/${body.task_id}/stream`);
    endsOnce(chunksOf(frames));
    const socket = await Socket.open(t, server);
    socket.send({ event: 'user.reconnect', session_id: session, content: { last_seq: 0 } });
    const told = await socket.await((frame) => frame.event === 'agent.operation_completed');
    assert.equal(told.content.operation_id, body.operation_id);
    assert.equal(told.content.status, 'failed');
    // The same call again is still the same operation.
    const again = await server.call('POST', `/api/chat/sessions/${session}/operations`, order);
    assert.equal(again.body.operation_id, body.operation_id);
});
