// The workflow transport: it finds its run by a header, comes back by the number of chunks it has, and can ask for the tail.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { WorkflowChatTransport } from '@workflow/ai';
import * as ai from 'ai';

import { endsOnce, recorder, said, textOf } from '../lib/generations.mjs';
import { Server, each, until, within } from '../lib/server.mjs';
import { chunksOf, peek, read } from '../lib/sse.mjs';
import { Wire } from '../lib/wire.mjs';

const words = (count) => Array.from({ length: count }, (_, at) => `tok${at + 1}`).join(' ');

/** The transport as its documents set it up: the request carries the id of the chat. It logs each cut; that is noise here. */
function transport(t, origin, more = {}) {
    t.mock.method(console, 'error', () => {});
    const requests = [];
    const made = new WorkflowChatTransport({
        api: `${origin}/api/chat`,
        fetch: async (url, init) => {
            const response = await fetch(url, init);
            requests.push({ url: String(url), method: init?.method ?? 'GET', response });
            return response;
        },
        prepareSendMessagesRequest: ({ id, messages, trigger, messageId }) => ({
            body: { id, messages, trigger, messageId },
        }),
        ...more,
    });
    return { made, requests };
}

async function collect(stream) {
    const chunks = [];
    const parsed = stream.pipeThrough(recorder(chunks));
    let message;
    const errors = [];
    const onError = (error) => errors.push(error);
    for await (const state of ai.readUIMessageStream({ stream: parsed, onError })) message = state;
    assert.deepEqual(errors, []);
    return { chunks, message };
}

const send = (made, chatId, prompt, more) =>
    made.sendMessages({ chatId, trigger: 'submit-message', messages: [said(`m-${chatId}`, prompt)], ...more });

test('send: the run id is in the answer, and leads back to the run', async (t) => {
    const server = await Server.start(t);
    const { made, requests } = transport(t, server.origin);
    const { chunks, message } = await collect(await send(made, 'chat-1', '/plan a dam'));
    endsOnce(chunks);
    assert.equal(requests.length, 1);
    const run = requests[0].response.headers.get('x-workflow-run-id');
    assert.equal(run, message.id);
    assert.equal((await server.task(run)).status, 'completed');
    assert.equal(requests[0].response.headers.get('location'), `/api/chat/tasks/${run}/stream`);
});

for (const prompt of ['/plan a dam', '/long 35 10']) {
    test(`cut behind every chunk, it comes back with ?startIndex=N and has each chunk once: ${prompt}`, async (t) => {
        const server = await Server.start(t);
        const reference = await collect(await send(transport(t, server.origin).made, 'reference', prompt));
        const count = reference.chunks.length;
        await each(Array.from({ length: count - 1 }, (_, at) => at + 1), 8, async (cut) => {
            const wire = await Wire.open(t, server);
            wire.cutAfterFrames(cut);
            const { made, requests } = transport(t, wire.origin);
            const { chunks, message } = await collect(await send(made, `chat-${cut}`, prompt));
            endsOnce(chunks);
            assert.equal(chunks.length, count);
            assert.equal(requests.length, 2);
            const asked = new URL(requests[1].url);
            assert.equal(asked.searchParams.get('startIndex'), String(cut));
            assert.equal(asked.pathname, `/api/chat/${message.id}/stream`);
            const whole = await read(`${server.origin}/api/chat/tasks/${message.id}/stream?fold=0`);
            assert.deepEqual(chunks, chunksOf(whole.frames));
        });
    });
}

test('cut again and again, it still has each chunk once', async (t) => {
    const server = await Server.start(t);
    const wire = await Wire.open(t, server);
    for (let cuts = 0; cuts < 20; cuts += 1) wire.cutAfterFrames(7);
    const { made } = transport(t, wire.origin, { maxConsecutiveErrors: 100 });
    const { chunks, message } = await collect(await send(made, 'chat-1', '/long 300 1'));
    endsOnce(chunks);
    assert.equal(wire.cuts, 20);
    assert.equal(textOf(message), words(300));
    const whole = await read(`${server.origin}/api/chat/tasks/${message.id}/stream?fold=0`);
    assert.deepEqual(chunks, chunksOf(whole.frames));
});

test('a negative startIndex brings the tail, and says where the end is; a cut there goes on from the right place', async (t) => {
    const server = await Server.start(t);
    const first = transport(t, server.origin);
    const collected = collect(await send(first.made, 'chat-1', '/confirm cast off'));
    const run = await until('it runs', () => first.requests[0]?.response.headers.get('x-workflow-run-id'));
    // start, start-step and the question: from here on the run waits.
    const asked = (await peek(`${server.origin}/api/chat/tasks/${run}/stream`, 3)).at(-1).chunk;
    assert.equal(asked.type, 'data-user_confirm');
    const wire = await Wire.open(t, server);
    const second = transport(t, wire.origin, {
        initialStartIndex: -1,
        prepareReconnectToStreamRequest: () => ({ api: `${wire.origin}/api/chat/${run}/stream` }),
    });
    const reader = (await second.made.reconnectToStream({ chatId: 'chat-1' })).getReader();
    const tail = [(await reader.read()).value];
    assert.deepEqual(tail, [asked]);
    assert.equal(second.requests[0].response.headers.get('x-workflow-stream-tail-index'), '2');
    wire.cutAfterFrames(1);
    const { session_id } = await server.task(run);
    const answer = { step_id: asked.data.step_id, confirmed: true };
    await server.call('POST', `/api/chat/sessions/${session_id}/respond`, answer);
    for (let next = await reader.read(); !next.done; next = await reader.read()) tail.push(next.value);
    assert.equal(wire.cuts, 1);
    assert.match(second.requests[1].url, /startIndex=4$/);
    endsOnce(tail);
    assert.deepEqual(tail, (await collected).chunks.slice(2));
});

test('a negative startIndex on a finished run: exactly the last chunks', async (t) => {
    const server = await Server.start(t);
    const { message, chunks } = await collect(await send(transport(t, server.origin).made, 'chat-1', '/long 40 0'));
    for (const back of [1, 5, chunks.length, chunks.length + 10]) {
        const tail = await read(`${server.origin}/api/chat/${message.id}/stream?startIndex=${-back}`);
        assert.equal(tail.headers.get('x-workflow-stream-tail-index'), String(chunks.length - 1));
        assert.deepEqual(chunksOf(tail.frames), chunks.slice(-back));
        assert.ok(tail.done);
    }
});

test('a run that was cancelled ends with abort, and the transport is not led into asking for ever', async (t) => {
    const server = await Server.start(t);
    const { made, requests } = transport(t, server.origin);
    const stream = await send(made, 'chat-1', '/long 100000 2');
    const seen = [];
    const reading = (async () => {
        for await (const chunk of stream) seen.push(chunk);
    })();
    await until('some words are there', () => seen.length > 8);
    await server.call('POST', `/api/chat/tasks/${seen[0].messageId}/cancel`, {});
    // It knows only `finish` for an end, and comes back once more; a plain "nothing more" stops it.
    await assert.rejects(within('the transport stops', () => reading), /Failed to fetch chat: 204/);
    endsOnce(seen, 'abort');
    assert.equal(requests.length, 2);
});
