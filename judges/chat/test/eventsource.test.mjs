// A real EventSource on a wire that is cut again and again: every id once, in order, then 204, and it stays closed.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { EventSource } from 'eventsource';

import { random, seed } from '../lib/dice.mjs';
import { endsOnce, generations, parse, textOf } from '../lib/generations.mjs';
import { PATIENCE_MS, Server } from '../lib/server.mjs';
import { bytesOf, chunksOf, read } from '../lib/sse.mjs';
import { Wire } from '../lib/wire.mjs';

/** How fast a client comes back. The package's own default of 3 s would only make the test long. */
const RETRY_MS = 1;

/** Reads with an EventSource until it stops by itself. `finish` counts as heard only once. */
function listen(url) {
    return new Promise((resolve, reject) => {
        const frames = [];
        let [opened, answered] = [0, 0];
        const hung = setTimeout(() => reject(new Error(`the EventSource never stopped; ${frames.length} frames`)), PATIENCE_MS * 3);
        const source = new EventSource(url, {
            // `retry:` is the server's to say; here the client's first wait is shortened as a server would by it.
            fetch: async (input, init) => {
                const response = await fetch(input, init);
                // A wire that was cut before the headers has answered nothing.
                answered += 1;
                if (response.status !== 200) return response;
                return new Response(prefixed(response.body, `retry: ${RETRY_MS}\n\n`), response);
            },
        });
        source.onopen = () => (opened += 1);
        source.onmessage = ({ data, lastEventId }) => {
            if (data !== '[DONE]') frames.push({ id: lastEventId, data, chunk: JSON.parse(data) });
        };
        source.onerror = ({ code }) => {
            // While it means to come back, it says CONNECTING.
            if (source.readyState !== EventSource.CLOSED) return;
            clearTimeout(hung);
            resolve({ frames, opened, answered, code, source });
        };
    });
}

function prefixed(stream, text) {
    const head = new TransformStream({
        start(controller) {
            controller.enqueue(new TextEncoder().encode(text));
        },
    });
    return stream.pipeThrough(head);
}

async function begin(server, prompt) {
    const session = await server.newSession();
    const started = await fetch(`${server.origin}/api/chat/sessions/${session}/stream`, {
        method: 'POST',
        body: JSON.stringify({ message: prompt, message_id: 'm-1' }),
    });
    const task = started.headers.get('x-workflow-run-id');
    // The one who asked goes away at once; the work goes on.
    await started.body.cancel();
    return task;
}

async function judge(t, server, task, wire) {
    const heard = await listen(`${wire.origin}/api/chat/tasks/${task}/stream?fold=0`);
    const whole = await read(`${server.origin}/api/chat/tasks/${task}/stream?fold=0`);
    assert.deepEqual(
        heard.frames.map((frame) => frame.id),
        whole.frames.map((frame) => frame.id),
    );
    assert.deepEqual(heard.frames, whole.frames);
    endsOnce(chunksOf(heard.frames));
    assert.equal(heard.code, 204);
    assert.equal(heard.source.readyState, EventSource.CLOSED);
    assert.equal(heard.answered, heard.opened + 1, 'the last answer is the first that is no stream');
    t.diagnostic(`${heard.frames.length} frames over ${heard.opened} answers, ${wire.cuts} cuts`);
    return heard;
}

test('a finished turn, cut every 1 to 64 KiB', async (t) => {
    t.diagnostic(`JUDGES_SEED=${seed}`);
    const server = await Server.start(t);
    const task = await begin(server, '/long 8000 0');
    const roll = random();
    const wire = await Wire.open(t, server);
    wire.cutEvery(() => 1024 + Math.floor(roll() * 63 * 1024));
    const { frames } = await judge(t, server, task, wire);
    assert.ok(wire.cuts > 5, 'the wire was cut often');
    const deltas = chunksOf(frames).filter(({ type }) => type === 'text-delta');
    const heard = deltas.map(({ delta }) => delta).join('');
    assert.equal(heard.split(' ').length, 8000);
    const folded = await read(`${server.origin}/api/chat/tasks/${task}/stream`);
    assert.ok(folded.frames.length < 20);
    for (const generation of generations) {
        assert.equal(textOf((await parse(generation, bytesOf(folded.frames))).message), heard);
    }
});

test('a live turn, cut every 1 to 4 KiB while it grows', async (t) => {
    t.diagnostic(`JUDGES_SEED=${seed}`);
    const server = await Server.start(t);
    const task = await begin(server, '/long 1500 1');
    const roll = random();
    const wire = await Wire.open(t, server);
    wire.cutEvery(() => 1024 + Math.floor(roll() * 3 * 1024));
    await judge(t, server, task, wire);
    assert.ok(wire.cuts > 5, 'the wire was cut often');
});

test('a background operation and a producer’s task are heard in the same way', async (t) => {
    t.diagnostic(`JUDGES_SEED=${seed}`);
    const server = await Server.start(t);
    const session = await server.newSession();
    const order = { tool_name: 'demo', arguments: { steps: 200, delay_ms: 1 } };
    const { body } = await server.call('POST', `/api/chat/sessions/${session}/operations`, order);
    const roll = random();
    const wire = await Wire.open(t, server);
    wire.cutEvery(() => 1024 + Math.floor(roll() * 3 * 1024));
    await judge(t, server, body.task_id, wire);

    const produced = await server.call('POST', '/api/chat/tasks', { tool_name: 'essay' });
    const { task_id } = produced.body;
    const other = await Wire.open(t, server);
    other.cutEvery(() => 1024 + Math.floor(roll() * 3 * 1024));
    const judged = judge(t, server, task_id, other);
    const append = (chunks) => server.call('POST', `/api/chat/tasks/${task_id}/messages`, chunks);
    await append([{ type: 'text-start', id: 'a' }]);
    for (let n = 0; n < 100; n += 1) await append([{ type: 'text-delta', id: 'a', delta: `${n} `.padEnd(40, '-') }]);
    await append([{ type: 'text-end', id: 'a' }, { type: 'finish' }]);
    await judged;
});
