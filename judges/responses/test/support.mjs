// The official client before a real server, and what several judges ask of it.

import assert from 'node:assert/strict';
import OpenAI from 'openai';

export { Server, until } from '../../chat/lib/server.mjs';

/** An existing app is pointed at a server by its address alone. */
export const client = (server, options = {}) =>
    new OpenAI({ baseURL: `${server.origin}/v1`, apiKey: 'none', maxRetries: 0, ...options });

export async function all(stream) {
    const events = [];
    for await (const event of stream) events.push(event);
    return events;
}

/** Numbers from 0 without holes, and one end that is the last event. */
export function isWhole(events, from = 0) {
    assert.deepEqual(
        events.map((event) => event.sequence_number),
        events.map((_, at) => at + from),
    );
    const ends = events.filter(({ type }) => ['response.completed', 'response.failed', 'response.incomplete'].includes(type));
    assert.equal(ends.length, 1);
    assert.equal(ends[0], events.at(-1));
}

/** What an SDK adds to a response for its own users is not the server's. */
export function plain(response) {
    const { output_text: _text, output_parsed: _parsed, _request_id, ...rest } = JSON.parse(JSON.stringify(response));
    for (const item of rest.output) {
        for (const part of item.content ?? []) delete part.parsed;
        delete item.parsed_arguments;
    }
    return rest;
}

export const same = (one, other) => assert.deepEqual(plain(one), plain(other));
