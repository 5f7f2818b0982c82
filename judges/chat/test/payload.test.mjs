// Payloads that look like the framing of a stream arrive byte-equal through every parser, and forge nothing.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { EventSource } from 'eventsource';
import OpenAI from 'openai';

import { endsOnce, generations, page, parse, said, textOf } from '../lib/generations.mjs';
import { Server } from '../lib/server.mjs';
import { Socket } from '../lib/socket.mjs';
import { bytesOf, chunksOf, read } from '../lib/sse.mjs';

const PAYLOADS = {
    'a frame of its own': 'x\n\ndata: {"type":"finish"}\n\n',
    'an end of the stream': 'x\n\ndata: [DONE]\n\nevent: end\n',
    'carriage returns': 'a\rb\r\nc\r\r\n\n\rd',
    'an id and a retry': 'id: 99-99\nretry: 1\n\nid: 1',
    'NUL': 'a\u0000b\u0000',
    'a byte order mark, first and last': '\ufeffa\ufeff',
    'line separators': 'a\u2028b\u2029c\u0085d',
    'control characters': Array.from({ length: 32 }, (_, code) => String.fromCharCode(code)).join('') + '\u007f',
    'quotes and escapes': '"\\" \\n \\u0000 </script> {"type":"abort"}',
    'beyond the basic plane': '🪢 𝔹 e\u0301 \u200d\u202e',
    'a comment': ': still here\n\n:',
    'only spaces': '   ',
    'a prototype': '__proto__ constructor',
};

for (const [name, payload] of Object.entries(PAYLOADS)) {
    test(`${name} arrives byte-equal through every parser`, async (t) => {
        const server = await Server.start(t);
        const prompt = `/echo ${payload}`;
        let task;
        for (const generation of generations) {
            const { chat, chunks, errors } = page(generation, server.origin, { id: `chat-${generation.major}` });
            await chat.sendMessage(said('m-1', prompt));
            assert.deepEqual(errors, []);
            endsOnce(chunks);
            assert.equal(textOf(chat.lastMessage), payload);
            task = await server.task(chat.lastMessage.id);
            const { messages } = await server.session(task.session_id);
            assert.equal(textOf(messages[0]), prompt);
            assert.equal(textOf(messages[1]), payload);
        }
        const where = `${server.origin}/api/chat/tasks/${task.task_id}/stream`;
        const whole = await read(where);
        for (const generation of generations) {
            assert.equal(textOf((await parse(generation, bytesOf(whole.frames))).message), payload);
        }
        const text = (chunks) => chunks.filter(({ type }) => type === 'text-delta').map(({ delta }) => delta).join('');
        assert.equal(text(chunksOf(whole.frames)), payload);

        const heard = await new Promise((resolve, reject) => {
            const chunks = [];
            const source = new EventSource(where);
            source.onerror = (error) => reject(new Error(`the EventSource broke off: ${error.message}`));
            source.onmessage = ({ data, lastEventId }) => {
                if (data === '[DONE]') {
                    source.close();
                    return resolve(chunks);
                }
                assert.match(lastEventId, /^[a-z0-9]+-[0-9]+(\.[0-9]+)?$/);
                chunks.push(JSON.parse(data));
            };
        });
        assert.equal(text(heard), payload);
        endsOnce(heard);

        const client = new OpenAI({ baseURL: `${server.origin}/api/chat`, apiKey: 'none' });
        const streamed = [];
        for await (const chunk of await client.get(`/tasks/${task.task_id}/stream`, { stream: true })) streamed.push(chunk);
        assert.equal(text(streamed), payload);
        endsOnce(streamed);

        const socket = await Socket.open(t, server);
        socket.send({ event: 'user.reconnect', session_id: task.session_id, content: { last_seq: 0 } });
        assert.equal((await socket.await(({ event }) => event === 'user.message')).content, prompt);
        assert.equal((await socket.await(({ event }) => event === 'agent.final_answer')).content, payload);
    });

    test(`${name} in a producer’s chunks arrives byte-equal, also as an id`, async (t) => {
        const server = await Server.start(t);
        const { body } = await server.call('POST', '/api/chat/tasks', {});
        const where = `/api/chat/tasks/${body.task_id}`;
        const chunks = [
            { type: 'text-start', id: payload },
            ...[...payload].map((delta) => ({ type: 'text-delta', id: payload, delta })),
            { type: 'text-end', id: payload },
            { type: 'data-x', id: payload, data: { [payload]: payload } },
            { type: 'finish' },
        ];
        const appended = await server.call('POST', `${where}/messages`, chunks);
        assert.equal(appended.status, 200, appended.text);
        for (const fold of [0, 1]) {
            const { frames } = await read(`${server.origin}${where}/stream?fold=${fold}`);
            for (const generation of generations) {
                const { message, errors } = await parse(generation, bytesOf(frames));
                assert.deepEqual(errors, []);
                assert.equal(textOf(message), payload);
                assert.deepEqual(message.parts.find(({ type }) => type === 'data-x').data, { [payload]: payload });
            }
        }
    });
}
