// The WebSocket mode as the official packages speak it, with the classes that they publish for it.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ResponsesWS } from 'openai/resources/responses/ws';

import { Server, client, isWhole, same, until } from './support.mjs';

/** A connection of the SDK's, and what came over it. */
async function connected(t, server, options = {}) {
    const socket = new ResponsesWS(client(server, options));
    const [events, errors] = [[], []];
    socket.on('event', (event) => event.type !== 'error' && events.push(event));
    socket.on('error', (error) => errors.push(error));
    t.after(() => socket.close());
    const ends = ['response.completed', 'response.failed', 'response.incomplete'];
    const ended = (count) => until('responses end', () => events.filter(({ type }) => ends.includes(type)).length >= count);
    return { socket, events, errors, ended };
}

test('responses over one connection, one after the other and side by side in lanes, are those that are asked for later', async (t) => {
    const server = await Server.start(t);
    const { socket, events, errors, ended } = await connected(t, server);
    socket.send({ type: 'response.create', model: 'demo', input: '/long 20 1' });
    await ended(1);
    isWhole(events);
    same(await client(server).responses.retrieve(events[0].response.id), events.at(-1).response);
    const previous = events.at(-1).response.id;
    const first = events.length;
    socket.send({ type: 'response.create', model: 'demo', input: '/long 5 1', previous_response_id: previous });
    await ended(2);
    isWhole(events.slice(first));
    assert.equal(events.at(-1).response.previous_response_id, previous);
    const lanes = events.length;
    for (const stream_id of ['a', 'b']) socket.send({ type: 'response.create', model: 'demo', input: '/long 30 2', stream_id });
    await ended(4);
    for (const lane of ['a', 'b']) {
        const own = events.slice(lanes).filter(({ stream_id }) => stream_id === lane);
        isWhole(own);
        same(await client(server).responses.retrieve(own[0].response.id), own.at(-1).response);
    }
    assert.deepEqual(errors, []);
});

test('functions are called and return over the same connection', async (t) => {
    const server = await Server.start(t);
    const { socket, events, ended } = await connected(t, server);
    const tools = [{ type: 'function', name: 'weather', parameters: { type: 'object', properties: {} }, strict: false }];
    socket.send({ type: 'response.create', model: 'demo', input: '/call weather', tools });
    await ended(1);
    const { id, output } = events.at(-1).response;
    const input = [{ type: 'function_call_output', call_id: output[0].call_id, output: 'sunny' }];
    socket.send({ type: 'response.create', model: 'demo', input, tools, previous_response_id: id });
    await ended(2);
    assert.equal(events.at(-1).response.output[0].content[0].text, 'weather: sunny');
});

test('what cannot be done is an error of the SDK\'s own, and the connection goes on', async (t) => {
    const server = await Server.start(t);
    const { socket, events, errors, ended } = await connected(t, server);
    socket.send({ type: 'response.create', model: 'nobody', input: 'hi' });
    socket.send({ type: 'response.steer', response_id: 'resp_1', input: [] });
    socket.sendRaw('no JSON');
    await until('they are refused', () => errors.length >= 3);
    const codes = errors.map(({ error }) => [error.status, error.error.code]);
    assert.deepEqual(codes.toSorted(), [[400, 'INVALID_PAYLOAD'], [400, 'INVALID_PAYLOAD'], [400, 'NOT_SUPPORTED']].toSorted());
    socket.send({ type: 'response.create', model: 'demo', input: '/echo still here' });
    await ended(1);
    assert.equal(events.at(-1).response.output[0].content[0].text, 'still here');
});

test('a response that was begun over a connection which the server took with it is read on over HTTP', async (t) => {
    const server = await Server.start(t);
    const { socket, events } = await connected(t, server);
    socket.send({ type: 'response.create', model: 'demo', input: '/long 100000 2' });
    await until('some words are there', () => events.length > 20);
    await server.killAndRestart();
    const { id } = events[0].response;
    const after = events.at(-1).sequence_number;
    const rest = [];
    for await (const event of await client(server).responses.retrieve(id, { stream: true, starting_after: after })) rest.push(event);
    isWhole([...events, ...rest]);
    assert.equal(rest.at(-1).response.error.code, 'AGENT_LOST');
});

test('a stranger is not let in', async (t) => {
    const people = '[{ token = "a-secret", principal = "a" }]';
    const server = await Server.start(t, { BOWLINE_AUTH__MODE: 'tokens', BOWLINE_AUTH__TOKENS: people });
    const strange = await connected(t, server, { apiKey: 'wrong' });
    await until('it is refused', () => strange.errors.length >= 1);
    const { socket, events, ended } = await connected(t, server, { apiKey: 'a-secret' });
    socket.send({ type: 'response.create', model: 'demo', input: '/echo mine' });
    await ended(1);
    assert.equal(events.at(-1).response.status, 'completed');
});
