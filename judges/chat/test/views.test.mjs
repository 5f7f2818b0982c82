// One log, two views: what starts over HTTP is seen live over the WebSocket, and the reverse.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { endsOnce, generations, page, said, textOf } from '../lib/generations.mjs';
import { Server, until } from '../lib/server.mjs';
import { chunksOf, peek, read } from '../lib/sse.mjs';
import { Socket } from '../lib/socket.mjs';

const words = (count) => Array.from({ length: count }, (_, at) => `tok${at + 1}`).join(' ');
const spoken = (events) =>
    events
        .filter(({ event }) => event === 'agent.partial_answer')
        .map(({ content }) => content)
        .join('');

test('a turn that was started over SSE is seen live over the WebSocket, event by event', async (t) => {
    const server = await Server.start(t);
    const session = await server.newSession();
    const socket = await Socket.open(t, server);
    socket.send({ event: 'user.reconnect', session_id: session, content: { mode: 'observe' } });
    await socket.await((frame) => frame.event === 'agent.session_created');
    const stream = read(`${server.origin}/api/chat/sessions/${session}/stream`, {
        method: 'POST',
        body: JSON.stringify({ message: '/confirm view', message_id: 'm-1' }),
    });
    // The run waits for an answer, so what the observer has now it has seen live.
    const asked = await socket.await((frame) => frame.event === 'agent.user_confirm');
    socket.send({ event: 'user.reconnect', session_id: session, content: {} });
    socket.send({ event: 'user.response', session_id: session, step_id: asked.step_id, content: { confirmed: true } });
    const answer = await socket.await((frame) => frame.event === 'agent.final_answer');
    assert.equal(answer.content, 'confirmed: view');
    const { frames } = await stream;
    endsOnce(chunksOf(frames));
    const shown = { role: 'assistant', parts: chunksOf(frames).filter(({ type }) => type === 'text-delta') };
    assert.equal(shown.parts.map(({ delta }) => delta).join(''), 'confirmed: view');
    // The number in a chunk's id is the number of the event that the socket saw.
    const numbers = new Set(frames.map(({ id }) => Number(id.split('-')[1].split('.')[0])));
    const logged = socket.frames.filter(({ seq }) => seq !== undefined);
    assert.deepEqual([...numbers], [...new Set(logged.map(({ seq }) => seq))]);
});

for (const generation of generations) {
    test(`a turn that was started over the WebSocket streams to ${generation.name}`, async (t) => {
        const server = await Server.start(t);
        // A page makes the chat, and with it the session.
        const { chat } = page(generation, server.origin, { id: 'chat-1' });
        await chat.sendMessage(said('m-1', '/echo hello'));
        const { session_id } = await server.task(chat.lastMessage.id);
        const socket = await Socket.open(t, server);
        socket.send({ event: 'user.reconnect', session_id, content: { last_seq: 2 } });
        await socket.await((frame) => frame.event === 'agent.session_created');
        socket.send({ event: 'user.message', session_id, message_id: 'm-2', content: '/long 150 4' });
        await socket.await((frame) => frame.event === 'agent.partial_answer');
        // Another tab with the same chat asks whether something runs.
        const { messages } = await server.session(session_id);
        assert.equal(messages.at(-1).role, 'user');
        const other = page(generation, server.origin, { id: 'chat-1', messages });
        await other.chat.resumeStream();
        endsOnce(other.chunks);
        assert.equal(textOf(other.chat.lastMessage), words(150));
        const end = await socket.await((frame) => frame.event === 'agent.final_answer');
        assert.equal(end.content, words(150));
        assert.equal(spoken(socket.frames), words(150));
        // The same key over the other door is the same message.
        const again = page(generation, server.origin, { id: 'chat-1' });
        await again.chat.sendMessage(said('m-2', '/long 150 4'));
        assert.equal(again.chat.lastMessage.id, other.chat.lastMessage.id);
        assert.equal((await server.session(session_id)).messages.length, 4);
    });
}

test('a cancel over either door is seen through the other', async (t) => {
    const server = await Server.start(t);
    const session = await server.newSession();
    const socket = await Socket.open(t, server);
    socket.send({ event: 'user.reconnect', session_id: session, content: {} });
    await socket.await((frame) => frame.event === 'agent.session_created');
    const start = (id) =>
        read(`${server.origin}/api/chat/sessions/${session}/stream`, {
            method: 'POST',
            body: JSON.stringify({ message: '/long 100000 2', message_id: id }),
        });
    const first = start('m-1');
    await socket.await((frame) => frame.event === 'agent.partial_answer');
    socket.send({ event: 'user.cancel', session_id: session });
    endsOnce(chunksOf((await first).frames), 'abort');
    await socket.await((frame) => frame.event === 'agent.cancelled');
    const [seen, second] = [socket.frames.length, start('m-2')];
    await until('the second turn speaks', () =>
        socket.frames.slice(seen).some((frame) => frame.event === 'agent.partial_answer'),
    );
    const { body } = await server.call('POST', `/api/chat/sessions/${session}/cancel`, {});
    assert.deepEqual(body, { cancelled: true, status: 'cancelled' });
    endsOnce(chunksOf((await second).frames), 'abort');
    await until('the socket hears of it', () =>
        socket.frames.slice(seen).some((frame) => frame.event === 'agent.cancelled'),
    );
});

test('the stream of a session waits with whoever watches, and says 204 when nothing runs', async (t) => {
    const server = await Server.start(t);
    const session = await server.newSession();
    assert.equal((await read(`${server.origin}/api/chat/sessions/${session}/stream`)).status, 204);
    const socket = await Socket.open(t, server);
    socket.send({ event: 'user.reconnect', session_id: session, content: {} });
    socket.send({ event: 'user.message', session_id: session, content: '/confirm wait' });
    const asked = await socket.await((frame) => frame.event === 'agent.user_confirm');
    const frames = await peek(`${server.origin}/api/chat/sessions/${session}/stream`, 3);
    assert.equal(frames[2].chunk.data.step_id, asked.step_id);
    const { status, active_stream } = await server.session(session);
    assert.equal(status, 'waiting');
    assert.equal(active_stream.task_id, frames[0].chunk.messageId);
    socket.send({ event: 'user.response', session_id: session, step_id: asked.step_id, content: { confirmed: false } });
    await socket.await((frame) => frame.event === 'agent.final_answer');
    assert.equal((await read(`${server.origin}/api/chat/sessions/${session}/stream`)).status, 204);
});
