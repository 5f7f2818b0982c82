// Functions of the caller's: the run waits for their outputs, across responses, kill -9 and other views of the same turn.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:http';
import { test } from 'node:test';
import WebSocket from 'ws';

import { Server, all, client, isWhole, same, until } from './support.mjs';

const tool = (name, properties = { city: { type: 'string' } }) => ({
    type: 'function',
    name,
    description: `Knows the ${name}.`,
    parameters: { type: 'object', properties, required: Object.keys(properties), additionalProperties: false },
    strict: true,
});
const tools = [tool('weather'), tool('time')];
const outputs = (calls, of = ({ name, arguments: args }) => `${name} in ${JSON.parse(args).city}`) =>
    calls.map((call) => ({ type: 'function_call_output', call_id: call.call_id, output: of(call) }));
const callsOf = (response) => response.output.filter(({ type }) => type === 'function_call');

test('a call completes the response, and its output begins the next; both are the same however they are read', async (t) => {
    const openai = client(await Server.start(t));
    const asked = { model: 'demo', input: '/call weather {"city": "Rome"}', tools };
    const first = await openai.responses.create(asked);
    assert.equal(first.status, 'completed');
    assert.deepEqual(first.tools, tools);
    const [call] = first.output;
    assert.deepEqual([call.type, call.name, JSON.parse(call.arguments), call.status], ['function_call', 'weather', { city: 'Rome' }, 'completed']);
    const answer = { model: 'demo', previous_response_id: first.id, tools, input: outputs([call]), metadata: { n: '2' } };
    const second = await openai.responses.create(answer);
    assert.equal(second.output_text, 'weather: weather in Rome');
    assert.deepEqual([second.previous_response_id, second.metadata], [first.id, { n: '2' }]);
    same(await openai.responses.create(answer), second);
    for (const whole of [first, second]) {
        same(await openai.responses.retrieve(whole.id), whole);
        const events = await all(await openai.responses.retrieve(whole.id, { stream: true }));
        isWhole(events);
        same(events.at(-1).response, whole);
        for (let at = 0; at < events.length; at++) {
            const rest = await all(await openai.responses.retrieve(whole.id, { stream: true, starting_after: at }));
            assert.deepEqual(rest, events.slice(at + 1));
        }
        same(await openai.responses.stream({ response_id: whole.id }).finalResponse(), whole);
    }
    const items = await openai.responses.inputItems.list(second.id);
    assert.deepEqual(items.data.map(({ type, call_id, output }) => ({ type, call_id, output })), answer.input);
    await assert.rejects(
        openai.responses.create({ ...answer, input: outputs([call], () => 'something else') }),
        ({ status, code }) => status === 404 && code === 'UNKNOWN_STEP',
    );
    const next = await openai.responses.create({ model: 'demo', previous_response_id: second.id, input: '/recall' });
    assert.match(next.output_text, /call weather/);
});

test('the SDK\'s stream helper gathers calls; several at once are answered together, or made one after the other', async (t) => {
    const openai = client(await Server.start(t));
    const asked = { model: 'demo', input: '/call weather {"city":"Rome"} time {"city":"Oslo"}', tools };
    const helper = openai.responses.stream(asked);
    const names = [];
    helper.on('response.function_call_arguments.done', ({ arguments: args }) => names.push(JSON.parse(args).city));
    const first = await helper.finalResponse();
    assert.deepEqual(names, ['Rome', 'Oslo']);
    const calls = callsOf(first);
    assert.equal(calls.length, 2);
    same(await openai.responses.retrieve(first.id), first);
    const answer = { model: 'demo', previous_response_id: first.id, tools };
    await assert.rejects(
        openai.responses.create({ ...answer, input: outputs(calls.slice(0, 1)) }),
        ({ status, param, message }) => status === 400 && param === 'input' && message.includes(calls[1].call_id),
    );
    await assert.rejects(
        openai.responses.create({ ...answer, input: 'never mind' }),
        ({ status, code }) => status === 409 && code === 'AGENT_BUSY',
    );
    const events = await all(await openai.responses.create({ ...answer, stream: true, input: outputs(calls.toReversed()) }));
    isWhole(events);
    assert.equal(events.at(-1).response.output.at(-1).content[0].text, 'weather: weather in Rome\ntime: time in Oslo');
    let response = await openai.responses.create({ ...asked, parallel_tool_calls: false });
    for (const name of ['weather', 'time']) {
        assert.deepEqual(callsOf(response).map((call) => call.name), [name]);
        const input = outputs(callsOf(response));
        response = await openai.responses.create({ ...answer, previous_response_id: response.id, input, parallel_tool_calls: false });
    }
    assert.equal(response.output_text, 'weather: weather in Rome\ntime: time in Oslo');
});

test('a run that waits for outputs outlives kill -9, and all views show that it waits', async (t) => {
    const server = await Server.start(t);
    const asked = { model: 'demo', input: '/call weather {"city":"Rome"}', tools, parallel_tool_calls: false };
    const { data: first, response: http } = await client(server).responses.create(asked).withResponse();
    const session = http.headers.get('bowline-session-id');
    for (const killed of [false, true]) {
        if (killed) await server.killAndRestart();
        const shown = await server.session(session);
        assert.equal(shown.status, 'waiting');
        const socket = new WebSocket(`${server.origin.replace('http', 'ws')}/ws`);
        const frames = [];
        socket.on('message', (data) => frames.push(JSON.parse(data)));
        await once(socket, 'open');
        socket.send(JSON.stringify({ event: 'user.reconnect', session_id: session, observe: true, last_seq: 0 }));
        await until('the WebSocket shows the call', () => frames.some(({ event }) => event === 'agent.tool_call'));
        const greeting = frames.find(({ event }) => event === 'agent.session_created');
        assert.equal(greeting.metadata.session_state, 'waiting');
        const { metadata } = frames.find(({ event }) => event === 'agent.tool_call');
        assert.deepEqual([metadata.tool, metadata.status, metadata.caller], ['weather', 'waiting', true]);
        socket.close();
        const task = shown.active_stream.task_id;
        assert.equal((await server.task(task)).status, 'running');
        same(await client(server).responses.retrieve(first.id), first);
    }
    const openai = client(server);
    const shown = await server.session(session);
    const chunks = (async () => {
        const stream = await fetch(`${server.origin}/api/chat/tasks/${shown.active_stream.task_id}/stream`);
        return (await stream.text()).split('\n\n').filter((line) => line.includes('data: {')).map((line) => JSON.parse(line.split('data: ')[1]));
    })();
    // Like clients that keep the conversation themselves: everything again, and no id.
    const input = [{ role: 'user', content: asked.input }, ...first.output, ...outputs(first.output)];
    const second = await openai.responses.create({ model: 'demo', tools, input });
    assert.equal(second.output_text, 'weather: weather in Rome');
    same(await openai.responses.retrieve(second.id), second);
    const told = await chunks;
    const call = told.find(({ type }) => type === 'tool-input-available');
    const returned = told.find(({ type }) => type === 'tool-output-available');
    assert.equal(call.toolCallId, returned.toolCallId);
    assert.deepEqual([call.toolName, returned.output], ['weather', 'weather in Rome']);
    assert.equal((await server.session(session)).status, 'idle');
});

test('a run that waits for outputs can be stopped, and no output brings it back', async (t) => {
    const server = await Server.start(t);
    const openai = client(server);
    const { data: first, response } = await openai.responses.create({ model: 'demo', input: '/call time', tools }).withResponse();
    const session = response.headers.get('bowline-session-id');
    const { active_stream } = await server.session(session);
    const cancelled = await server.call('POST', `/api/chat/tasks/${active_stream.task_id}/cancel`, {});
    assert.ok(cancelled.status < 300, cancelled.text);
    await assert.rejects(
        openai.responses.create({ model: 'demo', previous_response_id: first.id, input: outputs(first.output, () => 'late') }),
        ({ status, code }) => status === 404 && code === 'UNKNOWN_STEP',
    );
});

test('tool_choice decides what is called, and what is no function is refused', async (t) => {
    const openai = client(await Server.start(t));
    const ask = (more) => openai.responses.create({ model: 'demo', input: 'hello', tools, ...more });
    assert.deepEqual(callsOf(await ask({})), []);
    assert.deepEqual(callsOf(await ask({ tool_choice: 'none', input: '/echo x' })), []);
    assert.equal(callsOf(await ask({ tool_choice: 'required' }))[0].name, 'weather');
    const chosen = await ask({ tool_choice: { type: 'function', name: 'time' } });
    assert.equal(callsOf(chosen)[0].name, 'time');
    assert.deepEqual(chosen.tool_choice, { type: 'function', name: 'time' });
    const refused = async (more, code, param) =>
        assert.rejects(ask(more), (error) => error.status === 400 && error.code === code && error.param === param);
    await refused({ tools: [{ type: 'web_search' }] }, 'NOT_SUPPORTED', 'tools');
    await refused({ tools: [tool('a'), tool('a')] }, 'INVALID_PAYLOAD', 'tools');
    await refused({ tool_choice: { type: 'function', name: 'other' } }, 'INVALID_PAYLOAD', 'tool_choice');
    const failed = await ask({ input: '/call other', tool_choice: 'auto' });
    assert.equal(failed.error.code, 'AGENT_FAILED');
});

/** A server of an OpenAI-compatible model that calls what it is offered, and then says what it was told. */
async function model(t) {
    const requests = [];
    const http = createServer((request, response) => {
        let body = '';
        request.on('data', (bytes) => (body += bytes));
        request.on('end', () => {
            const asked = JSON.parse(body);
            requests.push(asked);
            const told = asked.messages.filter(({ role }) => role === 'tool').map(({ content }) => content);
            const call = (name, index) => ({ index, id: `model-${name}`, function: { name, arguments: '{"city": "Rome"}' } });
            const delta = told.length
                ? { content: `I was told: ${told.join(', ')}` }
                : { content: 'Let me ask.', tool_calls: asked.tools.map(({ function: { name } }, at) => call(name, at)) };
            response.writeHead(200, { 'content-type': 'text/event-stream' });
            const chunk = { model: 'm', choices: [{ delta, finish_reason: told.length ? 'stop' : 'tool_calls' }], usage: { prompt_tokens: 1, completion_tokens: 2 } };
            response.end(`data: ${JSON.stringify(chunk)}\n\ndata: [DONE]\n\n`);
        });
    });
    http.listen(0, '127.0.0.1');
    await once(http, 'listening');
    t.after(() => http.close());
    return { requests, url: `http://127.0.0.1:${http.address().port}/v1` };
}

test('a model is given the functions, calls them, and hears what they returned, also after kill -9', async (t) => {
    const upstream = await model(t);
    const server = await Server.start(t, {
        BOWLINE_AGENTS__HELPER__KIND: 'openai',
        BOWLINE_AGENTS__HELPER__MODEL: 'm',
        BOWLINE_AGENTS__HELPER__BASE_URL: upstream.url,
    });
    for (const killed of [false, true]) {
        upstream.requests.length = 0;
        const asked = { model: 'helper', input: 'What is it like in Rome?', tools, tool_choice: 'required' };
        const first = await client(server).responses.create(asked);
        assert.equal(first.output_text, 'Let me ask.');
        assert.deepEqual(callsOf(first).map(({ name, arguments: args }) => [name, args]), [
            ['weather', '{"city": "Rome"}'],
            ['time', '{"city": "Rome"}'],
        ]);
        const [request] = upstream.requests;
        assert.deepEqual(request.tools.map(({ function: one }) => one.name), ['weather', 'time']);
        assert.deepEqual([request.tools[0].function.strict, request.tool_choice], [true, 'required']);
        if (killed) await server.killAndRestart();
        const input = outputs(callsOf(first), ({ name }) => `${name}!`);
        const second = await client(server).responses.create({ model: 'helper', previous_response_id: first.id, tools, input });
        assert.match(second.output_text, /I was told: weather!, time!$/);
        assert.deepEqual(second.usage.total_tokens, 6);
        const told = upstream.requests.at(-1).messages;
        assert.deepEqual(told.map(({ role }) => role), ['user', 'assistant', 'tool', 'tool']);
        assert.deepEqual(told.slice(2).map(({ tool_call_id }) => tool_call_id), ['model-weather', 'model-time']);
        same(await client(server).responses.retrieve(second.id), second);
    }
});

test('the two scenarios of the Open Responses suite with tools of the caller, written anew', async (t) => {
    const upstream = await model(t);
    const server = await Server.start(t, {
        BOWLINE_AGENTS__HELPER__KIND: 'openai',
        BOWLINE_AGENTS__HELPER__MODEL: 'm',
        BOWLINE_AGENTS__HELPER__BASE_URL: upstream.url,
    });
    const asked = {
        model: 'helper',
        input: [{ type: 'message', role: 'user', content: "What's the weather like in San Francisco?" }],
        tools: [{ ...tool('get_weather', { location: { type: 'string' } }), strict: undefined }],
    };
    const response = await client(server).responses.create(asked);
    assert.equal(callsOf(response).length, 1);
    const events = await all(await client(server).responses.create({ ...asked, stream: true }));
    isWhole(events);
    const kinds = events.map(({ type, item }) => (item ? `${type} ${item.type}` : type));
    for (const kind of [
        'response.output_item.added function_call',
        'response.function_call_arguments.delta',
        'response.function_call_arguments.done',
        'response.output_item.done function_call',
    ]) {
        assert.ok(kinds.includes(kind), kind);
    }
});

test('an agent that calls no functions is given none', async (t) => {
    const upstream = await model(t);
    const server = await Server.start(t, { BOWLINE_AGENTS__PROGRAM__KIND: 'http', BOWLINE_AGENTS__PROGRAM__URL: upstream.url });
    await assert.rejects(
        client(server).responses.create({ model: 'program', input: 'hi', tools }),
        ({ status, code, param }) => status === 400 && code === 'NOT_SUPPORTED' && param === 'tools',
    );
});
