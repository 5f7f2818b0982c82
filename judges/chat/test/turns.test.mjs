// One turn in each generation of the `ai` package: whole, stopped, failed, repeated, made anew, and seen by two at once.

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';

import { endsOnce, generations, identical, inHistory, page, parse, said, textOf } from '../lib/generations.mjs';
import { Server, until } from '../lib/server.mjs';
import { bytesOf, chunksOf, read } from '../lib/sse.mjs';

/** `tok1 tok2 …`, as the demo agent counts. */
export const words = (count) => Array.from({ length: count }, (_, at) => `tok${at + 1}`).join(' ');

/** The whole turn again, unfolded and folded, each by a parser of its own. */
async function again(generation, server, task) {
    const unfolded = await read(`${server.origin}/api/chat/tasks/${task}/stream?fold=0`);
    const folded = await read(`${server.origin}/api/chat/tasks/${task}/stream`);
    assert.ok(unfolded.done && folded.done);
    assert.ok(folded.frames.length <= unfolded.frames.length);
    endsOnce(chunksOf(unfolded.frames), chunksOf(folded.frames).at(-1).type);
    return Promise.all([unfolded, folded].map((stream) => parse(generation, bytesOf(stream.frames))));
}

for (const generation of generations) {
    describe(generation.name, { concurrency: 4 }, () => {
        const turns = {
            '/plan a garden': (text) => assert.match(text, /^On “a garden”: 3 of 3 tasks are done\./),
            '/long 20 0': (text) => assert.equal(text, words(20)),
            '/echo  two  spaces ': (text) => assert.equal(text, ' two  spaces '),
            '/op demo 2 1': (text) => assert.match(text, /^`demo` is at work in the background as op_/),
            'good morning': (text) => assert.match(text, /^Hello! I am the demo agent\./),
        };
        for (const [prompt, check] of Object.entries(turns)) {
            test(`an uninterrupted turn is the same message live, replayed, folded and in the history: ${prompt}`, async (t) => {
                const server = await Server.start(t);
                const { chat, chunks, errors } = page(generation, server.origin, { id: 'chat-1' });
                await chat.sendMessage({ text: prompt });
                assert.deepEqual(errors, []);
                assert.equal(chat.status, 'ready');
                endsOnce(chunks);
                check(textOf(chat.lastMessage));
                const task = await server.task(chat.lastMessage.id);
                assert.equal(task.status, 'completed');
                for (const replay of await again(generation, server, task.task_id)) {
                    assert.deepEqual(replay.errors, []);
                    identical(replay.message, chat.lastMessage);
                }
                // A background operation may be at work a moment longer than the turn that began it.
                const session = await until('nothing is at work', async () => {
                    const session = await server.session(task.session_id);
                    return session.active_stream === null && session;
                });
                assert.equal(session.status, 'idle');
                assert.equal(session.messages.length, 2);
                // By then it has ended, and the history shows its result where the page was told that it began.
                const shown = JSON.parse(JSON.stringify(chat.lastMessage));
                for (const part of shown.parts) {
                    if (part.output?.type === 'operation_started') part.output = { tool: 'demo', steps: 2 };
                }
                inHistory(shown, session.messages[1]);
                // What a page would begin with after a reload is what this generation takes for messages.
                const valid = await generation.ai.validateUIMessages({ messages: session.messages });
                assert.equal(valid.length, 2);
                assert.deepEqual(session.messages[0].id, chat.messages[0].id);
            });
        }

        test('a conversation goes on: the agent knows the earlier messages, and the page has each answer once', async (t) => {
            const server = await Server.start(t);
            const { chat } = page(generation, server.origin, { id: 'chat-1' });
            await chat.sendMessage({ text: '/echo one' });
            await chat.sendMessage({ text: '/echo two' });
            await chat.sendMessage({ text: '/recall' });
            assert.equal(textOf(chat.lastMessage), '/echo one\n/echo two');
            assert.deepEqual(
                chat.messages.map((message) => message.role),
                ['user', 'assistant', 'user', 'assistant', 'user', 'assistant'],
            );
            const { session_id } = await server.task(chat.lastMessage.id);
            const { messages } = await server.session(session_id);
            messages.forEach((shown, at) => inHistory(chat.messages[at], shown));
        });

        test('a question waits, is answered over HTTP, and the same stream goes on', async (t) => {
            const server = await Server.start(t);
            const { chat, chunks } = page(generation, server.origin, { id: 'chat-1' });
            const sent = chat.sendMessage({ text: '/confirm dig' });
            const asked = await until('the question is there', () =>
                chat.lastMessage?.parts.find((part) => part.type === 'data-user_confirm'),
            );
            const { session_id, status } = await server.task(chat.lastMessage.id);
            assert.equal(status, 'running');
            assert.equal((await server.session(session_id)).status, 'waiting');
            const answer = { step_id: asked.data.step_id, confirmed: true };
            assert.equal((await server.call('POST', `/api/chat/sessions/${session_id}/respond`, answer)).status, 200);
            assert.equal((await server.call('POST', `/api/chat/sessions/${session_id}/respond`, answer)).status, 404);
            await sent;
            endsOnce(chunks);
            assert.equal(textOf(chat.lastMessage), 'confirmed: dig');
            const { messages } = await server.session(session_id);
            inHistory(chat.lastMessage, messages[1]);
        });

        test('the server’s cancel stops the work: the stream ends with abort, and what was said is kept', async (t) => {
            const server = await Server.start(t);
            const { chat, chunks, errors } = page(generation, server.origin, { id: 'chat-1' });
            const sent = chat.sendMessage({ text: '/long 100000 2' });
            await until('some words are there', () => textOf(chat.lastMessage).includes('tok5'));
            const { task_id, session_id } = await server.task(chat.lastMessage.id);
            const cancelled = await server.call('POST', `/api/chat/tasks/${task_id}/cancel`, { reason: 'enough' });
            assert.deepEqual(cancelled.body, { cancelled: true, status: 'cancelled' });
            await sent;
            assert.deepEqual(errors, []);
            assert.equal(chat.status, 'ready');
            endsOnce(chunks, 'abort');
            const task = await server.task(task_id);
            assert.equal(task.status, 'cancelled');
            assert.ok(task.finished_at);
            for (const replay of await again(generation, server, task_id)) identical(replay.message, chat.lastMessage);
            const { messages, status } = await server.session(session_id);
            assert.equal(status, 'idle');
            inHistory(chat.lastMessage, messages[1]);
            assert.equal(messages[1].metadata.interrupted, true);
            const twice = await server.call('POST', `/api/chat/tasks/${task_id}/cancel`, {});
            assert.deepEqual(twice.body, { cancelled: false, status: 'cancelled' });
        });

        test('stop() in the page is a disconnect and not a cancel: the work goes on, and another page has all of it', async (t) => {
            const server = await Server.start(t);
            const { chat } = page(generation, server.origin, { id: 'chat-1' });
            const sent = chat.sendMessage({ text: '/long 300 3' });
            await until('some words are there', () => textOf(chat.lastMessage).includes('tok5'));
            await chat.stop();
            await sent;
            const task = chat.lastMessage.id;
            assert.equal((await server.task(task)).status, 'running');
            const other = page(generation, server.origin, { id: 'chat-1', messages: chat.messages.slice(0, 1) });
            await other.chat.resumeStream();
            endsOnce(other.chunks);
            assert.equal(textOf(other.chat.lastMessage), words(300));
        });

        test('an agent that fails: partial text, error, then finish', async (t) => {
            const server = await Server.start(t);
            const { chat, chunks, errors } = page(generation, server.origin, { id: 'chat-1' });
            await chat.sendMessage({ text: '/fail 3' });
            assert.equal(chat.status, 'error');
            assert.equal(errors.length, 1);
            assert.match(errors[0].message, /asked to fail after 3 words/);
            assert.equal(textOf(chat.lastMessage), words(3));
            assert.ok(chunks.some((chunk) => chunk.type === 'error'));
            const task = await server.task(chat.lastMessage.id);
            assert.equal(task.status, 'failed');
            assert.equal(task.error.code, 'AGENT_FAILED');
            const { frames } = await read(`${server.origin}/api/chat/tasks/${task.task_id}/stream?fold=0`);
            const types = chunksOf(frames).map((chunk) => chunk.type);
            assert.deepEqual(types.slice(-2), ['error', 'finish']);
            endsOnce(chunksOf(frames));
            for (const replay of await again(generation, server, task.task_id)) {
                identical(replay.message, chat.lastMessage);
                assert.equal(replay.errors.length, 1);
            }
            inHistory(chat.lastMessage, (await server.session(task.session_id)).messages[1]);
            chat.clearError();
            await chat.sendMessage({ text: '/echo better' });
            assert.equal(textOf(chat.lastMessage), 'better');
        });

        test('two readers at once: the page that asked and one that came later have the same message', async (t) => {
            const server = await Server.start(t);
            const first = page(generation, server.origin, { id: 'chat-1' });
            const sent = first.chat.sendMessage({ text: '/long 200 3' });
            await until('some words are there', () => textOf(first.chat.lastMessage).includes('tok9'));
            const later = page(generation, server.origin, { id: 'chat-1', messages: first.chat.messages.slice(0, 1) });
            await Promise.all([sent, later.chat.resumeStream()]);
            for (const reader of [first, later]) {
                assert.deepEqual(reader.errors, []);
                endsOnce(reader.chunks);
                assert.equal(textOf(reader.chat.lastMessage), words(200));
            }
            identical(later.chat.lastMessage, first.chat.lastMessage);
        });

        test('a repeated POST joins the running turn, replays the finished one, and runs nothing twice', async (t) => {
            const server = await Server.start(t);
            const first = page(generation, server.origin, { id: 'chat-1' });
            const sent = first.chat.sendMessage(said('m-1', '/long 100 3'));
            await until('some words are there', () => textOf(first.chat.lastMessage).includes('tok9'));
            const second = page(generation, server.origin, { id: 'chat-1' });
            await Promise.all([sent, second.chat.sendMessage(said('m-1', '/long 100 3'))]);
            const third = page(generation, server.origin, { id: 'chat-1' });
            await third.chat.sendMessage(said('m-1', '/long 100 3'));
            for (const reader of [first, second, third]) {
                endsOnce(reader.chunks);
                identical(reader.chat.lastMessage, first.chat.lastMessage);
                assert.equal(textOf(reader.chat.lastMessage), words(100));
            }
            const { session_id } = await server.task(first.chat.lastMessage.id);
            assert.equal((await server.session(session_id)).messages.length, 2);
            assert.equal((await server.get('/api/chat/sessions')).total, 1);
            const other = page(generation, server.origin, { id: 'chat-1' });
            await other.chat.sendMessage(said('m-1', '/long 101 3'));
            assert.equal(other.responses[0].status, 409);
            assert.match(other.errors[0].message, /IDEMPOTENCY_CONFLICT|used before/);
            assert.equal((await server.session(session_id)).messages.length, 2);
        });

        test('regenerate runs anew and replaces the last answer; the repetition of that request does not', async (t) => {
            const server = await Server.start(t);
            const { chat, chunks } = page(generation, server.origin, { id: 'chat-1' });
            await chat.sendMessage({ text: '/echo before' });
            await chat.sendMessage({ text: '/long 30 0' });
            const old = chat.lastMessage;
            chunks.length = 0;
            await chat.regenerate({ messageId: old.id });
            endsOnce(chunks);
            assert.notEqual(chat.lastMessage.id, old.id);
            assert.equal(textOf(chat.lastMessage), words(30));
            assert.equal(chat.messages.length, 4);
            const { session_id } = await server.task(chat.lastMessage.id);
            const { messages } = await server.session(session_id);
            assert.equal(messages.length, 4);
            messages.forEach((shown, at) => inHistory(chat.messages[at], shown));
            const body = { id: 'chat-1', trigger: 'regenerate-message', messageId: old.id, messages: chat.messages.slice(0, 3) };
            const repeated = await read(`${server.origin}/api/chat`, { method: 'POST', body: JSON.stringify(body) });
            assert.equal(repeated.frames[0].chunk.messageId, chat.lastMessage.id);
            assert.equal((await server.session(session_id)).messages.length, 4);
        });
    });
}
