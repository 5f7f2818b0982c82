// Webhooks by the Standard Webhooks rules, verified by what the official packages have for it.

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { once } from 'node:events';
import { createServer } from 'node:http';
import { test } from 'node:test';
import { promisify } from 'node:util';
import { InvalidWebhookSignatureError } from 'openai';

import { Server, client, until } from './support.mjs';

const secret = `whsec_${Buffer.from('a key of thirty-two bytes length').toString('base64')}`;

/** A receiver that answers with what `answer` says, and keeps what it heard. */
async function receiver(t, answer = () => 200) {
    const heard = [];
    const http = createServer((request, response) => {
        let body = '';
        request.on('data', (bytes) => (body += bytes));
        request.on('end', () => {
            heard.push({ body, headers: request.headers, path: request.url });
            const status = answer(heard.length, request.url);
            response.writeHead(status, status === 302 ? { location: '/elsewhere' } : {});
            response.end();
        });
    });
    http.listen(0, '127.0.0.1');
    await once(http, 'listening');
    t.after(() => http.close());
    return { heard, url: `http://127.0.0.1:${http.address().port}/hook`, port: http.address().port };
}

const settings = (url, more = {}) => ({
    BOWLINE_WEBHOOKS__URLS: JSON.stringify([url]),
    BOWLINE_WEBHOOKS__SECRET: secret,
    BOWLINE_WEBHOOKS__ALLOW_PRIVATE: 'true',
    ...more,
});
const unwrap = (server, { body, headers }) => client(server, { webhookSecret: secret }).webhooks.unwrap(body, headers);

/** A model that stops because it may say no more. */
async function cutShort(t) {
    const http = createServer((request, response) => {
        request.resume();
        const chunk = { choices: [{ delta: { content: 'Well' }, finish_reason: 'length' }] };
        request.on('end', () => {
            response.writeHead(200, { 'content-type': 'text/event-stream' });
            response.end(`data: ${JSON.stringify(chunk)}\n\ndata: [DONE]\n\n`);
        });
    });
    http.listen(0, '127.0.0.1');
    await once(http, 'listening');
    t.after(() => http.close());
    return `http://127.0.0.1:${http.address().port}/v1`;
}

test('the end of each response in the background is told once, signed, and both SDKs unwrap it', async (t) => {
    const target = await receiver(t);
    const server = await Server.start(
        t,
        settings(target.url, {
            BOWLINE_AGENTS__MODEL__KIND: 'openai',
            BOWLINE_AGENTS__MODEL__MODEL: 'm',
            BOWLINE_AGENTS__MODEL__BASE_URL: await cutShort(t),
        }),
    );
    const openai = client(server);
    await openai.responses.create({ model: 'demo', input: '/echo in the foreground' });
    const ask = (input, model = 'demo') => openai.responses.create({ model, input, background: true });
    const expected = new Map();
    expected.set((await ask('/long 3 1')).id, 'response.completed');
    expected.set((await ask('/fail 2')).id, 'response.failed');
    expected.set((await ask('hi', 'model')).id, 'response.incomplete');
    const running = await ask('/long 100000 5');
    expected.set(running.id, 'response.cancelled');
    await openai.responses.cancel(running.id);
    const asked = await ask('/confirm this');
    expected.set(asked.id, 'response.completed');
    await until('the question is there', async () => (await openai.responses.retrieve(asked.id)).status === 'completed');
    const { output } = await openai.responses.retrieve(asked.id);
    const input = [{ type: 'mcp_approval_response', approval_request_id: output[0].id, approve: true }];
    const answered = await openai.responses.create({ model: 'demo', previous_response_id: asked.id, input, background: true });
    expected.set(answered.id, 'response.completed');
    await until('all ends are told', () => target.heard.length >= expected.size);
    const told = new Map();
    for (const one of target.heard) {
        const event = await unwrap(server, one);
        assert.deepEqual([event.object, event.id], ['event', one.headers['webhook-id']]);
        assert.ok(Math.abs(event.created_at - Date.now() / 1000) < 60);
        told.set(event.data.id, event.type);
        await assert.rejects(unwrap(server, { ...one, body: `${one.body} ` }), InvalidWebhookSignatureError);
    }
    assert.deepEqual(told, expected);
    const script = new URL('../webhook.py', import.meta.url).pathname;
    const python = promisify(execFile)(process.env.JUDGES_PYTHON, [script, secret]);
    python.child.stdin.end(JSON.stringify(target.heard));
    const read = (await python).stdout.trim().split('\n').map((line) => line.split(' ').toReversed());
    assert.deepEqual(new Map(read), expected);
    assert.equal(new Set(target.heard.map(({ headers }) => headers['webhook-id'])).size, expected.size);
});

test('a webhook that is not heard is sent again under the same id, and no redirect is followed', async (t) => {
    const target = await receiver(t, (n) => [500, 302, 200][n - 1] ?? 200);
    const server = await Server.start(t, settings(target.url));
    const { id } = await client(server).responses.create({ model: 'demo', input: '/echo x', background: true });
    await until('it is heard', () => target.heard.length >= 3);
    assert.deepEqual(target.heard.map(({ path }) => path), ['/hook', '/hook', '/hook']);
    assert.equal(new Set(target.heard.map(({ headers }) => headers['webhook-id'])).size, 1);
    assert.equal((await unwrap(server, target.heard[2])).data.id, id);
    await until('it is counted', async () => {
        const { text } = await server.call('GET', '/metrics');
        return /bowline_webhooks_total\{outcome="delivered"\} 1/.test(text) && /outcome="retried"\} 2/.test(text);
    });
});

test('what is owed when the server is killed with -9 is told after it, under the same id', async (t) => {
    let isUp = false;
    const target = await receiver(t, () => (isUp ? 200 : 503));
    const server = await Server.start(t, settings(target.url));
    const done = await client(server).responses.create({ model: 'demo', input: '/echo x', background: true });
    const cut = await client(server).responses.create({ model: 'demo', input: '/long 100000 5', background: true });
    await until('it is tried', () => target.heard.length >= 1);
    await server.killAndRestart();
    isUp = true;
    const before = target.heard.length;
    await until('both are told', () => target.heard.length >= before + 2);
    const events = await Promise.all(target.heard.slice(before).map((one) => unwrap(server, one)));
    const types = new Map(events.map(({ data, type }) => [data.id, type]));
    assert.deepEqual([types.get(done.id), types.get(cut.id)], ['response.completed', 'response.failed']);
    const idOf = (heard) => heard.headers['webhook-id'];
    assert.ok(target.heard.slice(before).some((one) => idOf(one) === idOf(target.heard[0])));
});

test('the end of a response whose first events are no longer kept is told all the same', async (t) => {
    const target = await receiver(t);
    const server = await Server.start(t, settings(target.url, { BOWLINE_BUFFER__EVENTS_MAX: '50' }));
    const { id } = await client(server).responses.create({ model: 'demo', input: '/long 3000 0', background: true });
    await until('its end is told', () => target.heard.length >= 1);
    const event = await unwrap(server, target.heard[0]);
    assert.deepEqual([event.data.id, event.type], [id, 'response.completed']);
});

test('targets inside are refused: an address at the start, a name when it is dialled', async (t) => {
    const target = await receiver(t);
    const closed = { BOWLINE_WEBHOOKS__ALLOW_PRIVATE: 'false' };
    await assert.rejects(Server.start(t, settings(target.url, closed)), /webhooks\.urls/);
    const server = await Server.start(t, settings(`http://localhost:${target.port}/hook`, closed));
    await client(server).responses.create({ model: 'demo', input: '/echo x', background: true });
    await until('it is tried', async () => /webhooks_total\{outcome="retried"\}/.test((await server.call('GET', '/metrics')).text));
    assert.equal(target.heard.length, 0);
});
