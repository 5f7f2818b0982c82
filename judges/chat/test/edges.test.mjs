// The edges of a stream: whose it is, how long it lives, what is told when part of it is gone, and what stops it.

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';

import { endsOnce, generations, page, parse, said, terminals, textOf } from '../lib/generations.mjs';
import { Server, until } from '../lib/server.mjs';
import { Socket } from '../lib/socket.mjs';
import { bytesOf, chunksOf, peek, read } from '../lib/sse.mjs';

const words = (count) => Array.from({ length: count }, (_, at) => `tok${at + 1}`).join(' ');

const begin = (server, session, message, headers = {}) =>
    server.call('POST', `/api/chat/sessions/${session}/stream`, { message, message_id: 'm-1' }, headers);

test('DELETE ends the session and cancels its work: the turn and the operations', async (t) => {
    const server = await Server.start(t);
    const session = await server.newSession();
    const order = { tool_name: 'demo', arguments: { steps: 100000, delay_ms: 5 } };
    const operation = (await server.call('POST', `/api/chat/sessions/${session}/operations`, order)).body;
    const start = { method: 'POST', body: JSON.stringify({ message: '/long 100000 2', message_id: 'm-1' }) };
    const frames = await peek(`${server.origin}/api/chat/sessions/${session}/stream`, 8, start);
    const turn = read(`${server.origin}/api/chat/tasks/${frames[0].chunk.messageId}/stream`);
    const work = read(`${server.origin}/api/chat/tasks/${operation.task_id}/stream`);
    assert.equal((await server.call('DELETE', `/api/chat/sessions/${session}`)).status, 204);
    endsOnce(chunksOf((await turn).frames), 'abort');
    endsOnce(chunksOf((await work).frames), 'abort');
    const gone = await server.call('GET', `/api/chat/sessions/${session}`);
    assert.ok([404, 409, 410].includes(gone.status), gone.text);
    assert.equal((await server.get('/api/chat/sessions')).total, 0);
    const late = await begin(server, session, '/echo late');
    assert.ok(late.status >= 400 && late.status < 500, late.text);
    const later = await server.call('DELETE', `/api/chat/sessions/${session}`);
    assert.ok(later.status < 500, later.text);
});

describe('with tokens', () => {
    const env = {
        BOWLINE_AUTH__MODE: 'tokens',
        BOWLINE_AUTH__TOKENS: '[{ token = "alice-token", principal = "alice" }, { token = "bob-token", principal = "bob" }]',
    };
    const as = (name) => ({ authorization: `Bearer ${name}-token` });

    test('what is somebody else’s is answered as what does not exist, to the byte', async (t) => {
        const server = await Server.start(t, env);
        const session = (await server.call('POST', '/api/chat/sessions', {}, as('alice'))).body.id;
        const started = await peek(`${server.origin}/api/chat/sessions/${session}/stream`, 3, {
            method: 'POST',
            headers: as('alice'),
            body: JSON.stringify({ message: '/confirm mine', message_id: 'm-1' }),
        });
        const turn = started[0].chunk.messageId;
        const task = (await server.call('POST', '/api/chat/tasks', { session_id: session }, as('alice'))).body;
        const own = (await server.call('POST', '/api/chat/tasks', { operation_id: 'mine' }, as('alice'))).body;

        const unknown = {
            session: `sess_${'0'.repeat(32)}`,
            turn: `turn_1_sess_${'0'.repeat(32)}`,
            task: `task_${'0'.repeat(32)}`,
            operation: `op_${'0'.repeat(32)}`,
        };
        const chunk = [{ type: 'text-start', id: 'a' }];
        const answer = { step_id: started[2].chunk.data.step_id, confirmed: true };
        const requests = [
            ['GET', '/api/chat/sessions/%', session, unknown.session],
            ['DELETE', '/api/chat/sessions/%', session, unknown.session],
            ['GET', '/api/chat/sessions/%/stream', session, unknown.session],
            ['POST', '/api/chat/sessions/%/stream', session, unknown.session, { message: 'hi' }],
            ['POST', '/api/chat/sessions/%/cancel', session, unknown.session, {}],
            ['POST', '/api/chat/sessions/%/operations', session, unknown.session, { tool_name: 'demo' }],
            ['POST', '/api/chat/sessions/%/respond', session, unknown.session, answer],
            ['GET', '/api/chat/tasks/%', turn, unknown.turn],
            ['GET', '/api/chat/tasks/%/stream', turn, unknown.turn],
            ['GET', '/api/chat/%/stream', turn, unknown.turn],
            ['GET', '/api/chat/%/stream?startIndex=0', turn, unknown.turn],
            ['POST', '/api/chat/tasks/%/cancel', turn, unknown.turn, {}],
            ['POST', '/api/chat/tasks/%/messages', turn, unknown.turn, chunk],
            ['POST', '/api/chat/tasks/%/complete', turn, unknown.turn, {}],
            ...[task.task_id, own.task_id].flatMap((id) => [
                ['GET', '/api/chat/tasks/%', id, unknown.task],
                ['GET', '/api/chat/tasks/%/stream', id, unknown.task],
                ['POST', '/api/chat/tasks/%/cancel', id, unknown.task, {}],
                ['POST', '/api/chat/tasks/%/messages', id, unknown.task, chunk],
                ['POST', '/api/chat/tasks/%/complete', id, unknown.task, {}],
            ]),
            ['POST', '/api/chat/operations/%/complete', task.operation_id, unknown.operation, { success: true }],
            ['POST', '/api/chat/operations/%/complete', 'mine', 'nobodys', { success: true }],
        ];
        for (const [method, where, theirs, nobodys, body] of requests) {
            const [foreign, missing] = await Promise.all(
                [theirs, nobodys].map((id) => server.call(method, where.replace('%', id), body, as('bob'))),
            );
            assert.equal(foreign.status, missing.status, `${method} ${where}`);
            assert.ok([204, 404].includes(foreign.status), `${method} ${where}: ${foreign.status}`);
            assert.equal(foreign.text, missing.text, `${method} ${where}`);
            const names = (answer) => [...answer.headers].filter(([name]) => name !== 'date');
            assert.deepEqual(names(foreign), names(missing), `${method} ${where}`);
        }
        assert.equal((await server.call('GET', '/api/chat/sessions', undefined, as('bob'))).body.total, 0);
        const made = await server.call('POST', '/api/chat/tasks', { session_id: session }, as('bob'));
        assert.equal(made.status, 404);

        const socket = await Socket.open(t, server, { path: '/produce', headers: as('bob') });
        const frame = (task_id) => socket.send({ task_id, producer_seq: 0, chunks: chunk });
        frame(own.task_id);
        frame(unknown.task);
        const [foreign, missing] = [await socket.await(() => true), await socket.await(() => true)];
        assert.deepEqual({ ...foreign, task_id: '' }, { ...missing, task_id: '' });

        // None of it touched anything.
        assert.equal((await server.call('GET', `/api/chat/tasks/${turn}`, undefined, as('alice'))).body.status, 'running');
        for (const { task_id } of [task, own]) {
            const shown = await server.call('GET', `/api/chat/tasks/${task_id}`, undefined, as('alice'));
            assert.equal(shown.body.status, 'running');
        }
        assert.equal((await server.call('POST', '/api/chat/operations/mine/complete', { success: true }, as('alice'))).status, 200);
    });

    test('without a token nothing is said, whatever exists', async (t) => {
        const server = await Server.start(t, env);
        for (const [method, where] of [
            ['POST', '/api/chat'],
            ['GET', '/api/chat/sessions'],
            ['POST', '/api/chat/tasks'],
            ['GET', '/api/chat/chat-1/stream'],
            ['GET', '/api/chat/config/ttl'],
        ]) {
            const refused = await server.call(method, where, method === 'POST' ? {} : undefined);
            assert.equal(refused.status, 401, `${method} ${where}`);
            assert.equal(refused.body.code, 'UNAUTHORIZED');
            const wrong = await server.call(method, where, method === 'POST' ? {} : undefined, as('eve'));
            assert.equal(wrong.status, 401);
        }
    });

    for (const generation of generations) {
        test(`the same chat id is another chat for another person: ${generation.name}`, async (t) => {
            const server = await Server.start(t, env);
            const [alice, bob] = ['alice', 'bob'].map((name) => page(generation, server.origin, { id: 'chat-1', headers: as(name) }));
            await alice.chat.sendMessage(said('m-1', '/echo secret'));
            assert.equal(textOf(alice.chat.lastMessage), 'secret');
            const busy = alice.chat.sendMessage(said('m-2', '/confirm secret'));
            await until('the question is there', () =>
                alice.chat.lastMessage.parts.some((part) => part.type === 'data-user_confirm'),
            );
            await bob.chat.resumeStream();
            assert.deepEqual([bob.chat.messages, bob.chunks, bob.errors], [[], [], []]);
            assert.equal(bob.responses.at(-1).status, 204);
            await bob.chat.sendMessage(said('m-1', '/recall'));
            assert.equal(textOf(bob.chat.lastMessage), '');
            const task = alice.chat.lastMessage.id;
            await server.call('POST', `/api/chat/tasks/${task}/cancel`, {}, as('alice'));
            await busy;
            endsOnce(alice.chunks.filter((_, at) => at >= alice.chunks.findIndex(({ messageId }) => messageId === task)), 'abort');
        });
    }
});

test('404 for what never was, 204 at the end, 400 for what is no cursor, and every error says what to do', async (t) => {
    const server = await Server.start(t);
    const session = await server.newSession();
    const { headers } = await begin(server, session, '/long 5 0');
    const task = headers.get('x-workflow-run-id');
    const where = `/api/chat/tasks/${task}/stream`;
    const { last_message_id } = await server.task(task);
    const [epoch, last] = last_message_id.split('-');
    const cases = [
        [`${where}?last_message_id=${last_message_id}`, 204],
        [`${where}?last_message_id=${last}`, 204],
        [`${where}?last_message_id=0`, 200],
        [`${where}?last_message_id=`, 200],
        [`${where}?last_message_id=abc`, 400, 'INVALID_PAYLOAD'],
        [`${where}?last_message_id=1.0.1`, 400, 'INVALID_PAYLOAD'],
        [`${where}?startIndex=x`, 400, 'INVALID_PAYLOAD'],
        [`${where}?fold=maybe`, 400, 'INVALID_PAYLOAD'],
        [`/api/chat/tasks/${task.replace(/_1_/, '_999_')}/stream`, 404, 'TASK_NOT_FOUND'],
        ['/api/chat/tasks/nonsense/stream', 404, 'TASK_NOT_FOUND'],
        ['/api/chat/tasks/nonsense', 404, 'TASK_NOT_FOUND'],
        ['/api/chat/sessions/nonsense', 404, 'SESSION_NOT_FOUND'],
        ['/api/chat/nonsense/stream', 204],
    ];
    for (const [path, status, code] of cases) {
        const answer = await server.call('GET', path);
        assert.equal(answer.status, status, `${path}: ${answer.text}`);
        if (code) {
            assert.equal(answer.body.code, code, path);
            assert.ok(answer.body.message && answer.body.recovery_action, path);
        }
    }
    // The header wins over the query.
    const both = await server.call('GET', `${where}?last_message_id=0`, undefined, { 'last-event-id': last_message_id });
    assert.equal(both.status, 204);
    // A cursor of another life of the log: the reader is told, and begins anew.
    const other = await read(`${server.origin}${where}`, { headers: { 'last-event-id': `x${epoch.slice(1)}-3` } });
    assert.equal(other.status, 200);
    assert.equal(other.frames[0].chunk.type, 'data-gap');
    endsOnce(chunksOf(other.frames));
});

test('the headers of a stream are those that proxies and the SDK look for', async (t) => {
    const server = await Server.start(t);
    const session = await server.newSession();
    const { headers, status } = await begin(server, session, '/echo hi');
    assert.equal(status, 200);
    const wanted = {
        'content-type': 'text/event-stream',
        'cache-control': 'no-cache, no-transform',
        'x-accel-buffering': 'no',
        'x-vercel-ai-ui-message-stream': 'v1',
    };
    for (const [name, value] of Object.entries(wanted)) assert.equal(headers.get(name), value);
    assert.equal(headers.get('location'), `/api/chat/tasks/${headers.get('x-workflow-run-id')}/stream`);
});

test('a quiet stream says something every ten seconds, which no parser takes for a chunk', async (t) => {
    const server = await Server.start(t);
    const { body } = await server.call('POST', '/api/chat/tasks', {});
    const response = await fetch(`${server.origin}/api/chat/tasks/${body.task_id}/stream`);
    const reader = response.body.getReader();
    const { value } = await reader.read();
    assert.match(new TextDecoder().decode(value), /^: [^\n]*\n\n$/);
    await reader.cancel();
});

test('a task’s stream is kept for stream.ttl after its end, then it is TASK_EXPIRED; a running one is never let go', async (t) => {
    const server = await Server.start(t, { BOWLINE_STREAM__TTL: '1s' });
    assert.deepEqual(await server.get('/api/chat/config/ttl'), { stream_ttl_seconds: 1, stream_ttl_ms: 1000 });
    const make = async () => (await server.call('POST', '/api/chat/tasks', {})).body;
    const [ended, running] = [await make(), await make()];
    await server.call('POST', `/api/chat/tasks/${ended.task_id}/messages`, [{ type: 'text-start', id: 'a' }, { type: 'finish' }]);
    const expired = await until('the task has expired', async () => {
        const answer = await server.call('GET', `/api/chat/tasks/${ended.task_id}`);
        return answer.status !== 200 && answer;
    });
    assert.equal(expired.status, 410);
    assert.equal(expired.body.code, 'TASK_EXPIRED');
    for (const [method, where, body] of [
        ['GET', 'stream'],
        ['GET', 'stream?last_message_id=1'],
        ['POST', 'messages', [{ type: 'text-start', id: 'b' }]],
        ['POST', 'complete', {}],
        ['POST', 'cancel', {}],
    ]) {
        const answer = await server.call(method, `/api/chat/tasks/${ended.task_id}/${where}`, body);
        assert.equal(answer.status, 410, where);
        assert.equal(answer.body.code, 'TASK_EXPIRED');
    }
    // It has been quiet for just as long.
    assert.equal((await server.task(running.task_id)).status, 'running');
    await server.killAndRestart();
    assert.equal((await server.call('GET', `/api/chat/tasks/${ended.task_id}`)).status, 410, 'a tombstone outlives a restart');
    assert.equal((await server.task(running.task_id)).status, 'running');
});

describe('when the log is trimmed past a cursor', () => {
    const trimmed = async (t) => {
        const server = await Server.start(t, { BOWLINE_BUFFER__EVENTS_MAX: '50' });
        const session = await server.newSession();
        const { headers } = await begin(server, session, '/long 200 0');
        return { server, session, where: `${server.origin}/api/chat/tasks/${headers.get('x-workflow-run-id')}/stream` };
    };

    for (const generation of generations) {
        test(`a gap is told first, with its bounds, and what follows still parses: ${generation.name}`, async (t) => {
            const { where } = await trimmed(t);
            for (const query of ['?last_message_id=10', '?last_message_id=10&frame=1', '?last_message_id=10&fold=1', '', '?startIndex=3']) {
                const stream = await read(where + query);
                assert.equal(stream.status, 200);
                const { type, data } = stream.frames[0].chunk;
                assert.equal(type, 'data-gap', query);
                assert.equal(stream.frames[0].id, undefined, 'a chunk that was made up has no id');
                const owed = query.includes('=10') ? 11 : 1;
                assert.equal(data.lost, data.first_retained - owed, query);
                assert.ok(data.lost > 0);
                const { message, chunks, errors } = await parse(generation, bytesOf(stream.frames));
                assert.deepEqual(errors, [], query);
                endsOnce(chunks);
                assert.equal(terminals(chunks).length, 1);
                // The pieces that are left, each once; and then the whole answer, since nobody knows what the reader lacks.
                const texts = message.parts.filter((part) => part.type === 'text').map((part) => part.text);
                const pieces = words(200).split(' ').slice(data.first_retained - 2);
                assert.deepEqual(texts, [` ${pieces.join(' ')}`, words(200)], query);
            }
        });
    }

    test('a cursor behind the gap loses nothing, and the history has the whole answer', async (t) => {
        const { server, session, where } = await trimmed(t);
        const all = await read(`${where}?fold=0`);
        const { frames } = await read(where, { headers: { 'last-event-id': all.frames.at(-20).id ?? all.frames.at(-21).id } });
        assert.ok(!chunksOf(frames).some(({ type }) => type === 'data-gap'));
        endsOnce(chunksOf(frames));
        const { messages } = await server.session(session);
        assert.equal(textOf(messages[1]).split(' ').length, 200);
    });
});
