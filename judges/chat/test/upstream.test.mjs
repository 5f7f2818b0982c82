// A program with the `ai` package behind the server, held at every chunk while its reader's wire is cut: the reload always
// comes in the middle of the turn, and always ends with the same message.

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';

import { endsOnce, generations, identical, inHistory, page, parse, said, textOf } from '../lib/generations.mjs';
import { Server, each, until } from '../lib/server.mjs';
import { bytesOf, chunksOf, read } from '../lib/sse.mjs';
import { Upstream } from '../lib/upstream.mjs';
import { Wire } from '../lib/wire.mjs';

/** A turn of two steps: a thought, plan data, a tool call whose input streams in, and a text. */
const TURN = [
    { type: 'start' },
    { type: 'start-step' },
    { type: 'reasoning-start', id: 'r1' },
    ...['Let ', 'me ', 'see', '.'].map((delta) => ({ type: 'reasoning-delta', id: 'r1', delta })),
    { type: 'reasoning-end', id: 'r1' },
    { type: 'data-plan', id: 'plan', data: { tasks: ['look', 'tell'], done: 0 } },
    { type: 'tool-input-start', toolCallId: 'c1', toolName: 'look' },
    ...['{"wh', 'ere":"n', 'orth"}'].map((inputTextDelta) => ({ type: 'tool-input-delta', toolCallId: 'c1', inputTextDelta })),
    { type: 'tool-input-available', toolCallId: 'c1', toolName: 'look', input: { where: 'north' } },
    { type: 'tool-output-available', toolCallId: 'c1', output: { seen: ['land', 'a light'] } },
    { type: 'data-plan', id: 'plan', data: { tasks: ['look', 'tell'], done: 1 } },
    { type: 'finish-step' },
    { type: 'start-step' },
    { type: 'text-start', id: 't1' },
    ...Array.from({ length: 18 }, (_, at) => ({ type: 'text-delta', id: 't1', delta: `word${at} ` })),
    { type: 'text-end', id: 't1' },
    { type: 'finish-step' },
];
const TEXT = TURN.map((chunk) => (chunk.type === 'text-delta' ? chunk.delta : '')).join('');

for (const generation of generations) {
    describe(generation.name, () => {
        test('cut behind every chunk in the middle of the turn, and reloaded there', async (t) => {
            const upstream = await Upstream.open(t, generation);
            const server = await Server.start(t, upstream.env);
            await each(TURN.map((_, at) => at), 6, async (cut) => {
                const [id, message] = [`chat-${cut}`, said(`m-${cut}`, `turn ${cut}`)];
                const wire = await Wire.open(t, server);
                wire.cutAfterFrames(cut);
                const first = page(generation, wire.origin, { id });
                const sent = first.chat.sendMessage(message);
                const turn = await upstream.turn(`turn ${cut}`);
                TURN.slice(0, cut).forEach(turn.write);
                await sent;
                assert.equal(first.chat.status, 'error');
                assert.equal(first.chunks.length, cut);

                const second = page(generation, server.origin, { id, messages: [message] });
                const resumed = second.chat.resumeStream();
                await until('the reloaded page has what was said', () => {
                    return second.chunks.length > 0 && spoken(second.chunks) === spoken(TURN.slice(0, cut));
                });
                const task = second.chunks[0].messageId;
                TURN.slice(cut).forEach(turn.write);
                turn.write({ type: 'finish' });
                turn.end();
                await resumed;
                assert.deepEqual(second.errors, []);
                assert.equal(second.chat.status, 'ready');
                endsOnce(second.chunks);
                assert.equal(textOf(second.chat.lastMessage), TEXT);

                const whole = await read(`${server.origin}/api/chat/tasks/${task}/stream?fold=0`);
                assert.deepEqual(chunksOf(whole.frames), [{ ...TURN[0], messageId: task }, ...TURN.slice(1), { type: 'finish' }]);
                const uncut = await parse(generation, bytesOf(whole.frames));
                identical(second.chat.lastMessage, uncut.message, `cut behind ${cut}`);
                const { session_id } = await server.task(task);
                const { messages } = await server.session(session_id);
                assert.equal(messages.length, 2);
                inHistory(second.chat.lastMessage, messages[1], `cut behind ${cut}`);
                await generation.ai.validateUIMessages({ messages });
            });
            assert.equal(upstream.asked, TURN.length, 'the program was asked once for each turn');
        });

        test('reloaded while the first token is awaited: a stream that waits, and not 204', async (t) => {
            const upstream = await Upstream.open(t, generation);
            const server = await Server.start(t, upstream.env);
            const message = said('m-1', 'slowly');
            const first = page(generation, server.origin, { id: 'chat-1' });
            const sent = first.chat.sendMessage(message);
            const turn = await upstream.turn('slowly');
            // Nothing was said yet, by anybody.
            const readers = [0, 1].map(() => page(generation, server.origin, { id: 'chat-1', messages: [message] }));
            const resumed = readers.map(({ chat }) => chat.resumeStream());
            await until('both are answered', () => readers.every(({ responses }) => responses.length === 1));
            readers.forEach(({ responses }) => assert.equal(responses[0].status, 200));
            [...TURN, { type: 'finish' }].forEach(turn.write);
            turn.end();
            await Promise.all([sent, ...resumed]);
            for (const reader of [first, ...readers]) {
                endsOnce(reader.chunks);
                identical(reader.chat.lastMessage, first.chat.lastMessage);
                assert.equal(textOf(reader.chat.lastMessage), TEXT);
            }
            assert.equal(upstream.asked, 1);
        });

        test('an upstream that breaks in the middle of its answer: what was said, error, then finish', async (t) => {
            const upstream = await Upstream.open(t, generation);
            const server = await Server.start(t, upstream.env);
            for (const cut of [4, 11, 15, 25]) {
                const { chat, chunks, errors } = page(generation, server.origin, { id: `chat-${cut}` });
                const sent = chat.sendMessage({ text: `broken ${cut}` });
                const turn = await upstream.turn(`broken ${cut}`);
                TURN.slice(0, cut).forEach(turn.write);
                await until('all of it has arrived', () => chunks.length === cut);
                turn.response.destroy();
                await sent;
                assert.equal(chat.status, 'error');
                assert.equal(errors.length, 1);
                const task = await server.task(chat.lastMessage.id);
                assert.equal(task.status, 'failed');
                assert.equal(task.error.code, 'AGENT_UNREACHABLE');
                const whole = await read(`${server.origin}/api/chat/tasks/${task.task_id}/stream?fold=0`);
                endsOnce(chunksOf(whole.frames));
                const types = chunksOf(whole.frames).map(({ type }) => type);
                assert.deepEqual(types.slice(-2), ['error', 'finish']);
                const replayed = await parse(generation, bytesOf(whole.frames));
                identical(replayed.message, chat.lastMessage, `broken behind ${cut}`);
                inHistory(chat.lastMessage, (await server.session(task.session_id)).messages[1], `broken behind ${cut}`);
            }
        });

        test('a cancel reaches the program at once; a reader that leaves does not', async (t) => {
            const upstream = await Upstream.open(t, generation);
            const server = await Server.start(t, upstream.env);
            const { chat, chunks } = page(generation, server.origin, { id: 'chat-1' });
            const sent = chat.sendMessage({ text: 'on and on' });
            const turn = await upstream.turn('on and on');
            TURN.slice(0, 24).forEach(turn.write);
            await until('some of it is there', () => textOf(chat.lastMessage).includes('word2'));
            const task = chat.lastMessage.id;
            await chat.stop();
            await sent;
            assert.equal(turn.response.destroyed, false);
            assert.equal((await server.task(task)).status, 'running');
            const other = page(generation, server.origin, { id: 'chat-1', messages: chat.messages.slice(0, 1) });
            const resumed = other.chat.resumeStream();
            await until('the other page has it', () => textOf(other.chat.lastMessage).includes('word2'));
            const { body } = await server.call('POST', `/api/chat/tasks/${task}/cancel`, {});
            assert.deepEqual(body, { cancelled: true, status: 'cancelled' });
            await turn.left;
            await resumed;
            endsOnce(other.chunks, 'abort');
            assert.ok(!chunks.some(({ type }) => type === 'abort'), 'the one who left was not told');
        });
    });
}

/** All text and thought in these chunks. */
function spoken(chunks) {
    return chunks.map(({ delta }) => delta ?? '').join('');
}
