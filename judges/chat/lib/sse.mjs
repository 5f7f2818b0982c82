// Streams as they are on the wire: frames with their ids, over one connection or over many.

import assert from 'node:assert/strict';
import { createParser } from 'eventsource-parser';

/** One connection, read until it ends or breaks. `frames` are the whole ones, with their ids; `cut` says how it ended. */
export async function read(url, { headers = {}, onFrame, method, body, signal } = {}) {
    const response = await fetch(url, { headers, method, body, signal });
    const connection = { status: response.status, headers: response.headers, frames: [], bytes: 0, cut: false, done: false };
    if (response.status !== 200) {
        connection.text = await response.text();
        return connection;
    }
    assert.equal(response.headers.get('content-type'), 'text/event-stream');
    const parser = createParser({
        onEvent({ id, data }) {
            if (data === '[DONE]') return (connection.done = true);
            assert.ok(!connection.done, 'nothing follows [DONE]');
            const frame = { id, data, chunk: JSON.parse(data) };
            connection.frames.push(frame);
            onFrame?.(frame);
        },
        onError(error) {
            throw error;
        },
    });
    const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });
    try {
        for await (const bytes of response.body) {
            connection.bytes += bytes.length;
            parser.feed(decoder.decode(bytes, { stream: true }));
        }
    } catch (error) {
        if (!/terminated|socket|network/.test(String(error))) throw error;
        connection.cut = true;
    }
    return connection;
}

/** The first frames of a stream that may not have ended; then the reader goes away. */
export async function peek(url, count, options = {}) {
    const leaving = new AbortController();
    const frames = [];
    const enough = () => frames.length >= count && leaving.abort();
    try {
        const onFrame = (frame) => {
            frames.push(frame);
            enough();
        };
        await read(url, { ...options, signal: leaving.signal, onFrame });
    } catch (error) {
        if (!leaving.signal.aborted) throw error;
    }
    assert.ok(frames.length >= count, `the stream ended after ${frames.length} of ${count} frames`);
    return frames.slice(0, count);
}

/** The frames as bytes again, as one stream. */
export function bytesOf(frames) {
    const text = frames.map(({ id, data }) => `${id === undefined ? '' : `id: ${id}\n`}data: ${data}\n\n`).join('');
    return new Response(`${text}data: [DONE]\n\n`).body;
}

/** The chunks of frames. */
export function chunksOf(frames) {
    return frames.map((frame) => frame.chunk);
}
