// Responses as the official npm package asks for them: whole, streamed, cut and resumed, in the background, stopped, and many in a row.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import WebSocket from 'ws';

import { Server, all, client, isWhole, plain, same, until } from './support.mjs';

test('a plain response is the one that is asked for later, and the one that is streamed', async (t) => {
    const openai = client(await Server.start(t));
    const response = await openai.responses.create({
        model: 'demo',
        input: '/long 5 0',
        instructions: 'Be brief.',
        metadata: { order: '7' },
        temperature: 0.5,
    });
    assert.equal(response.status, 'completed');
    assert.equal(response.output_text, 'tok1 tok2 tok3 tok4 tok5');
    assert.deepEqual([response.model, response.instructions, response.temperature], ['demo', 'Be brief.', 0.5]);
    assert.deepEqual(response.metadata, { order: '7' });
    same(await openai.responses.retrieve(response.id), response);
    const events = await all(await openai.responses.retrieve(response.id, { stream: true }));
    isWhole(events);
    same(events.at(-1).response, response);
    const items = await openai.responses.inputItems.list(response.id);
    assert.deepEqual(items.data.map(({ role, content }) => [role, content]), [
        ['user', [{ type: 'input_text', text: '/long 5 0' }]],
    ]);
    const models = await openai.models.list();
    assert.ok(models.data.some(({ id }) => id === 'demo'));
    assert.equal((await openai.models.retrieve('demo')).id, 'demo');
});

test('a stream that is cut at any event goes on as it was, by number and by the SDK\'s own helper', async (t) => {
    const openai = client(await Server.start(t));
    const stream = await openai.responses.create({ model: 'demo', input: 'hello', stream: true });
    const whole = await all(stream);
    isWhole(whole);
    const kinds = new Set(whole.map(({ type }) => type));
    assert.ok(kinds.has('response.reasoning_summary_text.delta') && kinds.has('response.output_text.delta'));
    const { id } = whole[0].response;
    const retrieved = await openai.responses.retrieve(id);
    for (let at = 0; at < whole.length; at++) {
        const rest = await all(await openai.responses.retrieve(id, { stream: true, starting_after: at }));
        assert.deepEqual(rest, whole.slice(at + 1));
    }
    for (let at = 0; at < whole.length - 1; at++) {
        const helper = openai.responses.stream({ response_id: id, starting_after: at });
        const seen = (await all(helper)).map(({ sequence_number }) => sequence_number);
        assert.deepEqual(seen, whole.slice(at + 1).map(({ sequence_number }) => sequence_number));
        same(await helper.finalResponse(), retrieved);
    }
    const helper = openai.responses.stream({ model: 'demo', input: '/long 40 1' });
    let text = '';
    helper.on('response.output_text.delta', ({ delta, snapshot }) => {
        text += delta;
        assert.equal(snapshot, text);
    });
    const final = await helper.finalResponse();
    assert.equal(final.output_text, text);
    same(await openai.responses.retrieve(final.id), final);
});

test('two readers of a response in the background, one of whom is cut again and again, see the same', async (t) => {
    const openai = client(await Server.start(t));
    const begun = await openai.responses.create({ model: 'demo', input: '/long 60 10', background: true });
    assert.ok(['queued', 'in_progress'].includes(begun.status));
    assert.equal(begun.background, true);
    const steady = all(await openai.responses.retrieve(begun.id, { stream: true }));
    const cut = [];
    while (cut.at(-1)?.type !== 'response.completed') {
        const after = cut.length ? { starting_after: cut.at(-1).sequence_number } : {};
        const stream = await openai.responses.retrieve(begun.id, { stream: true, ...after });
        let taken = 0;
        for await (const event of stream) {
            cut.push(event);
            if (++taken === 7) break;
        }
    }
    isWhole(cut);
    assert.deepEqual(cut, await steady);
    same(await openai.responses.retrieve(begun.id), cut.at(-1).response);
});

test('a response is a turn of a session: watched over a WebSocket and as a task at once, and stopped from here', async (t) => {
    const server = await Server.start(t);
    const openai = client(server);
    const { data: begun, response: http } = await openai.responses
        .create({ model: 'demo', input: '/long 100000 5', background: true })
        .withResponse();
    const session = http.headers.get('bowline-session-id');
    const socket = new WebSocket(`${server.origin.replace('http', 'ws')}/ws`);
    const names = [];
    socket.on('open', () => socket.send(JSON.stringify({ event: 'user.reconnect', session_id: session, observe: true })));
    socket.on('message', (data) => names.push(JSON.parse(data).event));
    const events = all(await openai.responses.retrieve(begun.id, { stream: true }));
    await until('the WebSocket shows the turn', () => names.includes('agent.partial_answer'));
    const shown = await server.session(session);
    assert.equal(shown.status, 'running');
    const cancelled = await openai.responses.cancel(begun.id);
    assert.equal(cancelled.status, 'cancelled');
    const seen = await events;
    isWhole(seen);
    assert.equal(seen.at(-1).response.status, 'cancelled');
    same(await openai.responses.retrieve(begun.id), cancelled);
    same(await openai.responses.cancel(begun.id), cancelled);
    same(await openai.responses.stream({ response_id: begun.id }).finalResponse(), cancelled);
    await until('the WebSocket shows the end', () => names.includes('agent.cancelled'));
    socket.close();
    assert.equal((await server.task(shown.active_stream.task_id)).status, 'cancelled');
});

test('after kill -9 in the middle a response ends honestly, and everything that was seen is still there', async (t) => {
    const server = await Server.start(t);
    const begun = await client(server).responses.create({ model: 'demo', input: '/long 100000 2', background: true });
    const seen = [];
    const reading = (async () => {
        for await (const event of await client(server).responses.retrieve(begun.id, { stream: true })) seen.push(event);
    })();
    const broken = assert.rejects(reading, 'a stream that is cut does not end as if it were whole');
    await until('some words are there', () => seen.length > 40);
    await server.killAndRestart();
    await broken;
    const after = seen.at(-1).sequence_number;
    const rest = await all(await client(server).responses.retrieve(begun.id, { stream: true, starting_after: after }));
    isWhole([...seen, ...rest]);
    const { response } = rest.at(-1);
    assert.deepEqual([response.status, response.error.code], ['failed', 'AGENT_LOST']);
    same(await client(server).responses.retrieve(begun.id), response);
});

test('a question is an approval request, and its answer goes on with the run', async (t) => {
    const server = await Server.start(t);
    const openai = client(server);
    for (const approve of [true, false]) {
        const asked = await openai.responses.create({ model: 'demo', input: '/confirm launch' });
        assert.equal(asked.status, 'completed');
        const [request] = asked.output;
        assert.equal(request.type, 'mcp_approval_request');
        assert.match(JSON.parse(request.arguments).question, /launch/);
        const input = [{ type: 'mcp_approval_response', approval_request_id: request.id, approve }];
        const answer = { model: 'demo', previous_response_id: asked.id, input, metadata: { by: 'judge' } };
        const answered = await openai.responses.create(answer);
        assert.equal(answered.output_text, `${approve ? 'confirmed' : 'declined'}: launch`);
        assert.deepEqual([answered.previous_response_id, answered.metadata], [asked.id, { by: 'judge' }]);
        same(await openai.responses.create(answer), answered);
        same(await openai.responses.stream({ response_id: answered.id }).finalResponse(), answered);
        const items = await openai.responses.inputItems.list(answered.id);
        assert.deepEqual([items.data[0].type, items.data[0].approve], ['mcp_approval_response', approve]);
        await assert.rejects(
            openai.responses.create({ ...answer, input: [{ ...input[0], approve: !approve }] }),
            ({ status, code }) => status === 404 && code === 'UNKNOWN_STEP',
        );
        const next = await openai.responses.create({ model: 'demo', previous_response_id: answered.id, input: '/recall' });
        assert.match(next.output_text, /confirm launch/);
    }
    const asked = await openai.responses.create({ model: 'demo', input: '/confirm later' });
    await server.killAndRestart();
    const input = [{ type: 'mcp_approval_response', approval_request_id: asked.output[0].id, approve: true }];
    const answered = await client(server).responses.create({ model: 'demo', previous_response_id: asked.id, input });
    assert.equal(answered.output_text, 'confirmed: later', 'a question outlives the server');
});

test('many turns follow each other, and none of them follows twice', async (t) => {
    const openai = client(await Server.start(t));
    let previous;
    for (let n = 0; n < 12; n++) {
        const response = await openai.responses.create({ model: 'demo', input: `/echo turn ${n}`, previous_response_id: previous });
        assert.equal(response.output_text, `turn ${n}`);
        assert.equal(response.previous_response_id, previous ?? null);
        if (n === 5) var middle = response.id;
        previous = response.id;
    }
    const recalled = await openai.responses.create({ model: 'demo', input: '/recall', previous_response_id: previous });
    assert.equal(recalled.output_text.split('\n').length, 12);
    await assert.rejects(
        openai.responses.create({ model: 'demo', input: '/recall', previous_response_id: middle }),
        ({ status, code, param }) => status === 400 && code === 'NOT_SUPPORTED' && param === 'previous_response_id',
    );
    const given = [
        { role: 'user', content: 'My name is Alice.' },
        { role: 'assistant', content: 'Hello Alice.' },
        { role: 'user', content: '/recall' },
    ];
    assert.equal((await openai.responses.create({ model: 'demo', input: given })).output_text, 'My name is Alice.');
    for (const input of ['/echo one', '/recall']) {
        var last = await openai.responses.create({ model: 'demo', input, conversation: 'holiday' });
        assert.deepEqual(last.conversation, { id: 'holiday' });
    }
    assert.equal(last.output_text, '/echo one');
});

test('of many that follow the same response at once exactly one does, and the others are told', async (t) => {
    const openai = client(await Server.start(t, { BOWLINE_SESSION__WHEN_BUSY: 'queue' }));
    for (const input of ['/echo one', '/long 20 20']) {
        const background = input !== '/echo one';
        const first = await openai.responses.create({ model: 'demo', input, background });
        const follow = (n) => openai.responses.create({ model: 'demo', input: `/echo ${n}`, previous_response_id: first.id });
        const tried = await Promise.allSettled([...Array(8).keys()].map(follow));
        const won = tried.filter(({ status }) => status === 'fulfilled');
        assert.equal(won.length, 1);
        for (const { reason } of tried.filter(({ status }) => status === 'rejected')) {
            assert.deepEqual([reason.status, reason.code, reason.param], [400, 'NOT_SUPPORTED', 'previous_response_id']);
        }
        const recall = { model: 'demo', input: '/recall', previous_response_id: won[0].value.id };
        assert.equal((await openai.responses.create(recall)).output_text.split('\n').length, 2);
    }
});

test('the five scenarios of the Open Responses suite without tools of the caller, written anew', async (t) => {
    const openai = client(await Server.start(t));
    const image_url = 'data:image/png;base64,iVBORw0KGgo=';
    const content = [{ type: 'input_text', text: 'What is this?' }, { type: 'input_image', image_url, detail: 'auto' }];
    const asked = {
        streaming: [{ type: 'message', role: 'user', content: 'Count from 1 to 5.' }],
        basic: [{ type: 'message', role: 'user', content: 'Say hello in exactly 3 words.' }],
        system: [
            { type: 'message', role: 'system', content: 'You are a pirate.' },
            { type: 'message', role: 'user', content: 'Say hello.' },
        ],
        image: [{ type: 'message', role: 'user', content }],
        turns: [
            { type: 'message', role: 'user', content: 'My name is Alice.' },
            { type: 'message', role: 'assistant', content: 'Hello Alice!' },
            { type: 'message', role: 'user', content: 'What is my name?' },
        ],
    };
    const fields = 'id object created_at completed_at status incomplete_details model previous_response_id instructions output error tools tool_choice';
    const more = 'truncation parallel_tool_calls text top_p presence_penalty frequency_penalty top_logprobs temperature reasoning user usage';
    const last = 'max_output_tokens max_tool_calls store background service_tier metadata safety_identifier prompt_cache_key';
    for (const input of Object.values(asked)) {
        const response = await openai.responses.create({ model: 'demo', input });
        assert.equal(response.status, 'completed');
        assert.ok(response.output.length > 0);
        for (const field of `${fields} ${more} ${last}`.split(' ')) assert.ok(field in response, field);
        const events = await all(await openai.responses.create({ model: 'demo', input, stream: true }));
        isWhole(events);
        assert.equal(events.at(-1).response.status, 'completed');
        if (input === asked.image) {
            assert.deepEqual((await openai.responses.inputItems.list(response.id)).data[0].content, content);
        }
    }
});

test('the same key twice runs once, and another request under it is refused', async (t) => {
    const openai = client(await Server.start(t));
    const body = { model: 'demo', input: '/long 3 1' };
    const options = { headers: { 'Idempotency-Key': 'order-7' } };
    const [one, two] = await Promise.all([openai.responses.create(body, options), openai.responses.create(body, options)]);
    same(one, two);
    same(await openai.responses.create(body, options), one);
    await assert.rejects(
        openai.responses.create({ ...body, input: 'other' }, options),
        ({ status, code }) => status === 409 && code === 'IDEMPOTENCY_CONFLICT',
    );
});

test('what goes wrong is an error of the SDK\'s own, with our code', async (t) => {
    const openai = client(await Server.start(t));
    const failed = await openai.responses.create({ model: 'demo', input: '/fail 2' });
    assert.deepEqual([failed.status, failed.error.code, failed.output_text], ['failed', 'AGENT_FAILED', 'tok1 tok2']);
    const refused = (promise, status, code, param = null) =>
        assert.rejects(promise, (error) => {
            assert.deepEqual([error.status, error.code, error.param ?? null], [status, code, param], error.message);
            return true;
        });
    await refused(openai.responses.retrieve('resp_1_sess_nobody'), 404, 'TASK_NOT_FOUND');
    await refused(openai.responses.retrieve('nonsense'), 404, 'TASK_NOT_FOUND');
    await refused(openai.responses.create({ model: 'nobody', input: 'hi' }), 400, 'INVALID_PAYLOAD', 'model');
    await refused(openai.responses.create({ model: 'demo' }), 400, 'INVALID_PAYLOAD', 'input');
    const kept = await openai.responses.create({ model: 'demo', input: '/echo gone' });
    await openai.responses.delete(kept.id);
    await refused(openai.responses.retrieve(kept.id), 410, 'TASK_EXPIRED');
    const passing = await openai.responses.create({ model: 'demo', input: '/echo gone', store: false });
    assert.equal(passing.output_text, 'gone');
    await refused(openai.responses.retrieve(passing.id), 410, 'TASK_EXPIRED');
});

test('nobody sees what is not theirs', async (t) => {
    const people = '[{ token = "a-secret", principal = "a" }, { token = "b-secret", principal = "b" }]';
    const server = await Server.start(t, { BOWLINE_AUTH__MODE: 'tokens', BOWLINE_AUTH__TOKENS: people });
    const [a, b] = ['a-secret', 'b-secret'].map((apiKey) => client(server, { apiKey }));
    const mine = await a.responses.create({ model: 'demo', input: '/echo secret' });
    const strange = ({ status, code }) => status === 404 && code === 'TASK_NOT_FOUND';
    await assert.rejects(b.responses.retrieve(mine.id), strange);
    await assert.rejects(b.responses.cancel(mine.id), strange);
    await assert.rejects(b.responses.delete(mine.id), strange);
    await assert.rejects(b.responses.create({ model: 'demo', input: 'hi', previous_response_id: mine.id }), strange);
    await assert.rejects(client(server, { apiKey: 'wrong' }).models.list(), ({ status }) => status === 401);
    same(await a.responses.retrieve(mine.id), mine);
    assert.ok(plain(mine).id);
});
