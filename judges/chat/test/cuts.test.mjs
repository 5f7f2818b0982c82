// The wire is cut behind every chunk of a turn; a reloaded page, a retried request and the same parser all end up with the
// same message.

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';

import { endsOnce, generations, identical, inHistory, page, parse, said, terminals, textOf } from '../lib/generations.mjs';
import { Server, each, until } from '../lib/server.mjs';
import { bytesOf, chunksOf, read } from '../lib/sse.mjs';
import { Wire } from '../lib/wire.mjs';

/**
 * Turns with thoughts, plan data and text; about forty chunks each, and slow enough to be caught in the middle, mostly. That
 * each one is, is tried with an agent that waits for it, in `upstream.test.mjs`.
 */
const PROMPTS = ['/plan a bridge', '/long 40 20'];
/** How many chats are cut side by side. */
const WIDTH = 8;

const range = (from, to) => Array.from({ length: to - from + 1 }, (_, at) => from + at);

/** The turn as a reader has it who was never cut. */
async function whole(generation, server, task) {
    const stream = await read(`${server.origin}/api/chat/tasks/${task}/stream?fold=0`);
    assert.ok(stream.done);
    endsOnce(chunksOf(stream.frames));
    const { message, errors } = await parse(generation, bytesOf(stream.frames));
    assert.deepEqual(errors, []);
    return { message, frames: stream.frames };
}

/** How many chunks a turn has when nobody disturbs it. */
async function count(server, prompt) {
    const body = { id: 'reference', messages: [said('reference', prompt)] };
    const { frames } = await read(`${server.origin}/api/chat`, { method: 'POST', body: JSON.stringify(body) });
    await server.call('DELETE', `/api/chat/sessions/${(await server.get('/api/chat/sessions')).sessions[0].id}`);
    return frames.length;
}

for (const generation of generations) {
    describe(generation.name, () => {
        for (const prompt of PROMPTS) {
            test(`cut behind every chunk, then a reload: ${prompt}`, async (t) => {
                const server = await Server.start(t);
                const chunks = await count(server, prompt);
                assert.ok(chunks >= 35, `${chunks} chunks`);
                let [resumed, over] = [0, 0];
                await each(range(0, chunks - 1), WIDTH, async (cut) => {
                    const id = `chat-${cut}`;
                    const message = said(`m-${cut}`, prompt);
                    const wire = await Wire.open(t, server);
                    wire.cutAfterFrames(cut);
                    const first = page(generation, wire.origin, { id });
                    await first.chat.sendMessage(message);
                    assert.equal(wire.cuts, 1);
                    assert.equal(first.chat.status, 'error', `cut behind ${cut}`);
                    assert.equal(first.chunks.length, cut);

                    // The reloaded page knows what was said, and asks whether something is under way.
                    const second = page(generation, server.origin, { id, messages: [message] });
                    await second.chat.resumeStream();
                    assert.deepEqual(second.errors, []);
                    assert.equal(second.chat.status, 'ready');
                    let task = second.chat.lastMessage.id;
                    if (second.chat.lastMessage.role === 'assistant') {
                        resumed += 1;
                        endsOnce(second.chunks);
                    } else {
                        // The turn was over by then, so nothing runs, and the history has the answer.
                        over += 1;
                        assert.equal(second.responses.at(-1).status, 204);
                        const retried = page(generation, server.origin, { id });
                        await retried.chat.sendMessage(message);
                        endsOnce(retried.chunks);
                        task = retried.chat.lastMessage.id;
                        second.chat.messages = retried.chat.messages;
                    }
                    const uncut = await whole(generation, server, task);
                    assert.equal(uncut.frames.length, chunks);
                    identical(second.chat.lastMessage, uncut.message, `cut behind ${cut}`);
                    const { session_id } = await server.task(task);
                    const { messages } = await server.session(session_id);
                    assert.equal(messages.length, 2, 'nothing ran twice');
                    inHistory(second.chat.lastMessage, messages[1]);
                });
                t.diagnostic(`${chunks} cuts: ${resumed} resumed in the middle, ${over} after the end`);
            });

            test(`cut behind every chunk, then the same request again: ${prompt}`, async (t) => {
                const server = await Server.start(t, { BOWLINE_AGENTS__DEMO__SPEED: '8' });
                const chunks = await count(server, prompt);
                await each(range(0, chunks - 1), WIDTH, async (cut) => {
                    const id = `chat-${cut}`;
                    const message = said(`m-${cut}`, prompt);
                    const wire = await Wire.open(t, server);
                    wire.cutAfterFrames(cut);
                    await page(generation, wire.origin, { id }).chat.sendMessage(message);
                    const retried = page(generation, wire.origin, { id });
                    await retried.chat.sendMessage(message);
                    endsOnce(retried.chunks);
                    const uncut = await whole(generation, server, retried.chat.lastMessage.id);
                    identical(retried.chat.lastMessage, uncut.message, `cut behind ${cut}`);
                    const { session_id } = await server.task(retried.chat.lastMessage.id);
                    assert.equal((await server.session(session_id)).messages.length, 2, 'nothing ran twice');
                });
            });

            test(`cut behind every chunk, and the same parser reads on: ${prompt}`, async (t) => {
                const server = await Server.start(t, { BOWLINE_AGENTS__DEMO__SPEED: '8' });
                const { chat } = page(generation, server.origin, { id: 'chat-1' });
                await chat.sendMessage({ text: prompt });
                const task = chat.lastMessage.id;
                const uncut = await whole(generation, server, task);
                for (const fold of ['0', '1']) {
                    const from = `/api/chat/tasks/${task}/stream?fold=${fold}`;
                    const { frames: all } = await read(server.origin + from);
                    await each(range(1, all.length), WIDTH, async (cut) => {
                        const wire = await Wire.open(t, server);
                        wire.cutAfterFrames(cut);
                        const before = await read(wire.origin + from);
                        assert.ok(before.cut);
                        assert.equal(before.frames.length, cut);
                        const last = before.frames.at(-1).id;
                        const after = await read(wire.origin + from, { headers: { 'last-event-id': last } });
                        if (cut === all.length) {
                            assert.equal(after.status, 204, 'nothing follows the last chunk');
                        } else {
                            assert.ok(after.done);
                        }
                        const parsed = await parse(generation, bytesOf([...before.frames, ...after.frames]));
                        assert.deepEqual(parsed.errors, []);
                        endsOnce(parsed.chunks);
                        identical(parsed.message, uncut.message, `fold=${fold}, cut behind ${cut}`);
                        const ids = [...before.frames, ...after.frames].map((frame) => frame.id);
                        assert.equal(new Set(ids).size, ids.length, 'no id comes twice');
                        if (fold === '0') assert.deepEqual(ids, all.map((frame) => frame.id));

                        // The cursor in the query does the same, and a fresh parser that asks for it is framed.
                        const query = `${from}&last_message_id=${encodeURIComponent(last)}`;
                        assert.deepEqual((await read(server.origin + query)).frames, after.frames);
                        const framed = await read(`${server.origin + query}&frame=1`);
                        if (framed.status === 204) return;
                        const fresh = await parse(generation, bytesOf(framed.frames));
                        assert.deepEqual(fresh.errors, [], `framed behind ${cut}`);
                        assert.equal(terminals(fresh.chunks).length, 1);
                        assert.ok(textOf(uncut.message).endsWith(textOf(fresh.message)));
                        assert.equal(fresh.message.id, uncut.message.id);
                    });
                }
            });

            test(`cut behind each single chunk of a live turn, and the same parser reads on: ${prompt}`, async (t) => {
                const server = await Server.start(t);
                const wire = await Wire.open(t, server);
                const session = await server.newSession();
                wire.cutAfterFrames(1);
                const start = { message: prompt, message_id: 'm-1' };
                const first = await read(`${wire.origin}/api/chat/sessions/${session}/stream`, {
                    method: 'POST',
                    body: JSON.stringify(start),
                });
                const task = first.frames[0].chunk.messageId;
                const frames = [...first.frames];
                for (;;) {
                    wire.cutAfterFrames(1);
                    const seen = frames.filter((frame) => frame.id === frames.at(-1).id);
                    assert.equal(seen.length, 1, 'each connection brings the next chunk');
                    const headers = { 'last-event-id': frames.at(-1).id };
                    const next = await read(`${wire.origin}/api/chat/tasks/${task}/stream`, { headers });
                    if (next.status === 204) break;
                    assert.equal(next.frames.length, 1);
                    frames.push(...next.frames);
                }
                const uncut = await whole(generation, server, task);
                assert.deepEqual(frames, uncut.frames);
                assert.equal(wire.cuts, frames.length);
                identical((await parse(generation, bytesOf(frames))).message, uncut.message);
            });
        }

        test('cut before, at and behind a question: whoever comes back waits with it, and sees its answer', async (t) => {
            const server = await Server.start(t);
            const pages = [];
            for (const cut of range(0, 3)) {
                const id = `chat-${cut}`;
                const message = said(`m-${cut}`, '/confirm weigh anchor');
                const wire = await Wire.open(t, server);
                wire.cutAfterFrames(cut);
                const sent = page(generation, wire.origin, { id }).chat.sendMessage(message);
                await sent;
                const reloaded = page(generation, server.origin, { id, messages: [message] });
                reloaded.waiting = reloaded.chat.resumeStream();
                pages.push(reloaded);
            }
            for (const reloaded of pages) {
                const asked = await until('the question is there', () =>
                    reloaded.chat.lastMessage.parts.find((part) => part.type === 'data-user_confirm'),
                );
                const { session_id, task_id } = await server.task(reloaded.chat.lastMessage.id);
                const answer = { step_id: asked.data.step_id, confirmed: false, reason: 'fog' };
                await server.call('POST', `/api/chat/sessions/${session_id}/respond`, answer);
                await reloaded.waiting;
                endsOnce(reloaded.chunks);
                assert.equal(textOf(reloaded.chat.lastMessage), 'declined: weigh anchor');
                identical(reloaded.chat.lastMessage, (await whole(generation, server, task_id)).message);
            }
        });

        test('a reload while the first token is awaited is a stream that waits, also for a message in the queue', async (t) => {
            const server = await Server.start(t, { BOWLINE_SESSION__WHEN_BUSY: 'queue' });
            const first = page(generation, server.origin, { id: 'chat-1' });
            const busy = first.chat.sendMessage(said('m-1', '/confirm one'));
            const asked = await until('the question is there', () =>
                first.chat.lastMessage?.parts.find((part) => part.type === 'data-user_confirm'),
            );
            const { session_id } = await server.task(first.chat.lastMessage.id);
            // Accepted, and not begun: nothing at all has been emitted for it.
            const queued = page(generation, server.origin, { id: 'chat-1' });
            const waits = queued.chat.sendMessage(said('m-2', '/long 30 0'));
            await until('it was accepted', () => queued.responses.length === 1);
            assert.equal(queued.responses[0].status, 200);
            // A second reader of the same, after a reload, by the same key.
            const reloaded = page(generation, server.origin, { id: 'chat-1' });
            const waitsToo = reloaded.chat.sendMessage(said('m-2', '/long 30 0'));
            await until('it was accepted', () => reloaded.responses.length === 1);
            assert.equal(reloaded.responses[0].status, 200);
            assert.deepEqual(queued.chunks.concat(reloaded.chunks), []);
            const answer = { step_id: asked.data.step_id, confirmed: true };
            await server.call('POST', `/api/chat/sessions/${session_id}/respond`, answer);
            await Promise.all([busy, waits, waitsToo]);
            assert.equal(textOf(first.chat.lastMessage), 'confirmed: one');
            for (const reader of [queued, reloaded]) {
                endsOnce(reader.chunks);
                identical(reader.chat.lastMessage, (await whole(generation, server, reader.chat.lastMessage.id)).message);
            }
            assert.equal((await server.session(session_id)).messages.length, 4);
        });

        if (generation.major === 7) {
            // This generation takes a replay for one, and begins its message anew. The others need a fresh page.
            test('the same page resumes after a cut without saying anything twice', async (t) => {
                const server = await Server.start(t);
                const wire = await Wire.open(t, server);
                wire.cutAfterFrames(20);
                const { chat } = page(generation, wire.origin, { id: 'chat-1' });
                await chat.sendMessage({ text: '/long 100 5' });
                assert.equal(chat.status, 'error');
                await chat.resumeStream();
                assert.equal(chat.status, 'ready');
                assert.equal(chat.messages.length, 2);
                identical(chat.lastMessage, (await whole(generation, server, chat.lastMessage.id)).message);
            });
        }
    });
}

test('a task whose producer has not said anything yet is a stream that waits', async (t) => {
    const server = await Server.start(t);
    const { body } = await server.call('POST', '/api/chat/tasks', {});
    const reading = read(`${server.origin}/api/chat/tasks/${body.task_id}/stream`);
    const append = [{ type: 'text-start', id: '1' }, { type: 'text-delta', id: '1', delta: 'late' }, { type: 'finish' }];
    await server.call('POST', `/api/chat/tasks/${body.task_id}/messages`, append);
    const stream = await reading;
    assert.equal(stream.status, 200);
    assert.ok(stream.done);
    endsOnce(chunksOf(stream.frames));
});
