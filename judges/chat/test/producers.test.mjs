// Programs outside push chunks: each append counts once however often it is sent, and readers see it as it was written.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { endsOnce, generations, parse, textOf } from '../lib/generations.mjs';
import { Server } from '../lib/server.mjs';
import { Socket } from '../lib/socket.mjs';
import { bytesOf, chunksOf, read } from '../lib/sse.mjs';
import { Wire } from '../lib/wire.mjs';

const delta = (text) => ({ type: 'text-delta', id: 'a', delta: text });
const named = (seq) => ({ 'producer-id': 'writer', 'producer-seq': String(seq), 'content-type': 'application/json' });

async function make(server, fields = {}) {
    const made = await server.call('POST', '/api/chat/tasks', fields);
    assert.equal(made.status, 201, made.text);
    assert.ok(made.body.task_id && made.body.operation_id);
    return made.body;
}

test('an append whose answer was swallowed is sent again, counts once, and gets the first one’s answer', async (t) => {
    const server = await Server.start(t);
    const { task_id } = await make(server);
    const wire = await Wire.open(t, server);
    const post = (seq, chunks) =>
        fetch(`${wire.origin}/api/chat/tasks/${task_id}/messages`, {
            method: 'POST',
            headers: named(seq),
            body: JSON.stringify(chunks),
        });
    await post(0, [{ type: 'text-start', id: 'a' }]);
    const ids = [];
    for (let seq = 1; seq <= 20; seq += 1) {
        wire.swallowAnswer();
        await assert.rejects(post(seq, [delta(`${seq} `)]), 'the answer is lost');
        const again = await post(seq, [delta(`${seq} `)]);
        assert.equal(again.status, 200);
        ids.push((await again.json()).last_message_id);
        assert.equal((await (await post(seq, [delta(`${seq} `)])).json()).last_message_id, ids.at(-1));
    }
    assert.equal(new Set(ids).size, 20);
    assert.equal(wire.cuts, 20);
    await post(21, [{ type: 'text-end', id: 'a' }, { type: 'finish' }]);
    const { frames } = await read(`${server.origin}/api/chat/tasks/${task_id}/stream?fold=0`);
    endsOnce(chunksOf(frames));
    const heard = frames.filter(({ chunk }) => chunk.type === 'text-delta');
    assert.deepEqual(heard.map(({ chunk }) => chunk.delta), Array.from({ length: 20 }, (_, at) => `${at + 1} `));
    // The answer names the place of the chunk: a reader who has that id has everything up to it.
    assert.deepEqual(heard.map(({ id }) => id), ids);
});

test('a hole is refused with what was expected; a used number with other chunks is a conflict', async (t) => {
    const server = await Server.start(t);
    const { task_id } = await make(server);
    const post = (seq, chunks) => server.call('POST', `/api/chat/tasks/${task_id}/messages`, chunks, named(seq));
    const early = await post(1, [{ type: 'text-start', id: 'a' }]);
    assert.equal(early.status, 409);
    assert.equal(early.body.details.expected, 0);
    assert.equal((await post(0, [{ type: 'text-start', id: 'a' }])).status, 200);
    assert.equal((await post(2, [delta('x')])).body.details.expected, 1);
    assert.equal((await post(0, [{ type: 'text-start', id: 'b' }])).body.code, 'IDEMPOTENCY_CONFLICT');
    for (const bad of ['x', '-1', '1.5', '']) {
        const headers = { ...named(0), 'producer-seq': bad };
        const refused = await server.call('POST', `/api/chat/tasks/${task_id}/messages`, [delta('x')], headers);
        assert.equal(refused.status, 400, `Producer-Seq: ${bad}`);
    }
    // Two producers of one task count each for itself.
    const other = await server.call('POST', `/api/chat/tasks/${task_id}/messages`, [delta('y')], {
        ...named(0),
        'producer-id': 'other',
    });
    assert.equal(other.status, 200);
});

test('chunks may come as lines; a wrong one refuses the whole append, and names itself', async (t) => {
    const server = await Server.start(t);
    const { task_id } = await make(server);
    const post = (body) => server.call('POST', `/api/chat/tasks/${task_id}/messages`, body);
    const lines = [{ type: 'text-start', id: 'a' }, delta('one'), delta(' two')].map((chunk) => JSON.stringify(chunk)).join('\n');
    assert.equal((await post(`${lines}\n`)).status, 200);
    for (const wrong of [{ type: 'unheard-of' }, { type: 'text-delta', id: 'a' }, 'text', { no: 'type' }]) {
        const refused = await post([delta(' never'), wrong]);
        assert.equal(refused.status, 400, JSON.stringify(wrong));
        assert.match(refused.body.message, /\[1\]/);
    }
    await server.call('POST', `/api/chat/tasks/${task_id}/complete`, {});
    const { frames } = await read(`${server.origin}/api/chat/tasks/${task_id}/stream`);
    for (const generation of generations) {
        assert.equal(textOf((await parse(generation, bytesOf(frames))).message), 'one two');
    }
});

test('every kind of chunk goes through as it was written, in all three generations', async (t) => {
    const server = await Server.start(t);
    const { task_id } = await make(server);
    const chunks = [
        { type: 'reasoning-start', id: 'r' },
        { type: 'reasoning-delta', id: 'r', delta: 'hm' },
        { type: 'reasoning-end', id: 'r' },
        { type: 'tool-input-start', toolCallId: 'c1', toolName: 'look' },
        { type: 'tool-input-delta', toolCallId: 'c1', inputTextDelta: '{"at":"' },
        { type: 'tool-input-delta', toolCallId: 'c1', inputTextDelta: 'stars"}' },
        { type: 'tool-input-available', toolCallId: 'c1', toolName: 'look', input: { at: 'stars' } },
        { type: 'tool-output-available', toolCallId: 'c1', output: { seen: 7 } },
        { type: 'tool-input-available', toolCallId: 'c2', toolName: 'look', input: {} },
        { type: 'tool-output-error', toolCallId: 'c2', errorText: 'clouds' },
        { type: 'source-url', sourceId: 's', url: 'https://example.org/', title: 'An example' },
        { type: 'file', url: 'data:text/plain,hi', mediaType: 'text/plain' },
        { type: 'data-mood', id: 'm', data: { now: 'calm' } },
        { type: 'data-mood', id: 'm', data: { now: 'glad' } },
        { type: 'message-metadata', messageMetadata: { weight: 1.5 } },
        { type: 'text-start', id: 't' },
        { type: 'text-delta', id: 't', delta: 'Seven ' },
        { type: 'text-delta', id: 't', delta: 'stars.' },
        { type: 'text-end', id: 't' },
        { type: 'finish-step' },
        { type: 'finish' },
    ];
    const written = [{ type: 'start' }, { type: 'start-step' }, ...chunks];
    const appended = await server.call('POST', `/api/chat/tasks/${task_id}/messages`, written);
    assert.equal(appended.status, 200, appended.text);
    const whole = await read(`${server.origin}/api/chat/tasks/${task_id}/stream?fold=0`);
    const heard = chunksOf(whole.frames);
    assert.deepEqual(heard.slice(2), chunks);
    assert.deepEqual(heard.slice(0, 2), [{ type: 'start', messageId: task_id }, { type: 'start-step' }]);
    for (const generation of generations) {
        const ours = await parse(generation, bytesOf(whole.frames));
        const direct = await parse(generation, bytesOf(heard.map((chunk) => ({ data: JSON.stringify(chunk) }))));
        assert.deepEqual(ours.errors, []);
        assert.deepEqual(ours.message, direct.message);
        // Cut behind each chunk: the same parser reads on, and a fresh one is framed.
        for (const { id } of whole.frames.slice(0, -1)) {
            const where = `${server.origin}/api/chat/tasks/${task_id}/stream?fold=0&last_message_id=${id}`;
            const at = whole.frames.findIndex((frame) => frame.id === id);
            assert.deepEqual((await read(where)).frames, whole.frames.slice(at + 1));
            const framed = await parse(generation, bytesOf((await read(`${where}&frame=1`)).frames));
            assert.deepEqual(framed.errors, [], `framed behind ${JSON.stringify(whole.frames[at].chunk)}`);
        }
    }
});

test('/produce: one connection, many tasks; each frame is answered once it is durable, and a repeat as the first time', async (t) => {
    const server = await Server.start(t);
    const tasks = await Promise.all([make(server), make(server)]);
    const socket = await Socket.open(t, server, { path: '/produce' });
    const push = async (task_id, producer_seq, chunks) => {
        socket.send({ task_id, producer_seq, chunks });
        return socket.await((frame) => frame.task_id === task_id && frame.producer_seq === producer_seq);
    };
    for (const { task_id } of tasks) await push(task_id, 0, [{ type: 'text-start', id: 'a' }]);
    const answers = [];
    for (let seq = 1; seq <= 50; seq += 1) {
        for (const { task_id } of tasks) answers.push(await push(task_id, seq, [delta(`${seq} `)]));
    }
    assert.ok(answers.every(({ last_message_id }) => last_message_id));
    const [{ task_id }] = tasks;
    assert.deepEqual(await push(task_id, 50, [delta('50 ')]), answers.at(-2));
    assert.equal((await push(task_id, 60, [delta('x')])).code, 'CURSOR_AHEAD');
    assert.equal((await push('task_00000000000000000000000000000000', 0, [delta('x')])).code, 'TASK_NOT_FOUND');
    await push(task_id, 51, [{ type: 'text-end', id: 'a' }, { type: 'finish' }]);
    assert.equal((await push(task_id, 52, [delta('late')])).code, 'TASK_ENDED');
    // A new connection of the same producer goes on where the old one was, and is told the same about the past.
    socket.ws.terminate();
    const again = await Socket.open(t, server, { path: '/produce' });
    again.send({ task_id: tasks[1].task_id, producer_seq: 50, chunks: [delta('50 ')] });
    assert.deepEqual(await again.await(() => true), answers.at(-1));
    again.send({ task_id: tasks[1].task_id, producer_seq: 51, chunks: [{ type: 'text-end', id: 'a' }, { type: 'finish' }] });
    await again.await((frame) => frame.producer_seq === 51);
    for (const { task_id } of tasks) {
        const { frames } = await read(`${server.origin}/api/chat/tasks/${task_id}/stream?fold=0`);
        endsOnce(chunksOf(frames));
        const heard = chunksOf(frames).filter(({ type }) => type === 'text-delta');
        assert.deepEqual(heard.map(({ delta }) => delta), Array.from({ length: 50 }, (_, at) => `${at + 1} `));
    }
});

test('an ended task takes nothing more, and ending it again in the same way is harmless', async (t) => {
    const server = await Server.start(t);
    const { task_id } = await make(server);
    const end = (body) => server.call('POST', `/api/chat/tasks/${task_id}/complete`, body);
    const first = await end({ success: false, error: 'no ink' });
    assert.equal(first.body.status, 'failed');
    assert.deepEqual((await end({ success: false, error: 'no ink' })).body, first.body);
    assert.equal((await end({ success: true })).body.code, 'TASK_ENDED');
    const late = await server.call('POST', `/api/chat/tasks/${task_id}/messages`, [delta('late')]);
    assert.equal(late.status, 409);
    assert.equal(late.body.code, 'TASK_ENDED');
    const { frames } = await read(`${server.origin}/api/chat/tasks/${task_id}/stream`);
    endsOnce(chunksOf(frames));
    assert.equal(chunksOf(frames).at(-2).errorText, 'no ink');
    assert.equal((await server.task(task_id)).error.message, 'no ink');
});
