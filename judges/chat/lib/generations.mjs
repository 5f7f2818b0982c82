// The three generations of the `ai` package, as a page uses them: its own transport, its own chat, its own parser.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';

const WANTED = { ai5: '5.0.277', ai6: '6.0.134', ai7: '7.0.169' };

export const generations = await Promise.all(
    Object.entries(WANTED).map(async ([name, version]) => {
        const manifest = new URL(`../node_modules/${name}/package.json`, import.meta.url);
        assert.equal(JSON.parse(readFileSync(manifest, 'utf8')).version, version, `${name} is not what was asked for`);
        return { name: `ai ${version}`, major: Number(version.split('.')[0]), ai: await import(name) };
    }),
);

/** What `useChat` keeps in React, kept in plain fields. */
class State {
    status = 'ready';
    error = undefined;

    constructor(messages) {
        this.messages = messages;
    }

    pushMessage = (message) => {
        this.messages = [...this.messages, message];
    };
    popMessage = () => {
        this.messages = this.messages.slice(0, -1);
    };
    replaceMessage = (index, message) => {
        this.messages = this.messages.map((old, at) => (at === index ? structuredClone(message) : old));
    };
    snapshot = (value) => structuredClone(value);
}

/** A page with one chat: the package's own classes, and a record of every chunk its parser was given. */
export function page(generation, origin, { id, messages = [], headers }) {
    const { AbstractChat, DefaultChatTransport } = generation.ai;
    const chunks = [];
    const responses = [];
    class Recording extends DefaultChatTransport {
        processResponseStream(stream) {
            return super.processResponseStream(stream).pipeThrough(recorder(chunks));
        }
    }
    class Chat extends AbstractChat {}
    const fetching = async (...request) => {
        const response = await fetch(...request);
        responses.push(response);
        return response;
    };
    const transport = new Recording({ api: `${origin}/api/chat`, headers, fetch: fetching });
    const errors = [];
    const chat = new Chat({
        id,
        transport,
        state: new State(messages),
        onError: (error) => errors.push(error),
    });
    return { chat, chunks, responses, errors, transport };
}

/** Passes chunks on, and keeps a copy of each. */
export function recorder(chunks) {
    return new TransformStream({
        transform(chunk, controller) {
            // The parsers keep chunks as parts, and change them later.
            chunks.push(structuredClone(chunk));
            controller.enqueue(chunk);
        },
    });
}

/** What one parser of this generation makes of the bytes of a stream, from however many connections they came. */
export async function parse(generation, bytes) {
    const { DefaultChatTransport, readUIMessageStream } = generation.ai;
    const chunks = [];
    const errors = [];
    const parsed = new DefaultChatTransport({}).processResponseStream(bytes).pipeThrough(recorder(chunks));
    let message;
    for await (const state of readUIMessageStream({ stream: parsed, onError: (error) => errors.push(error) })) {
        message = state;
    }
    return { message, chunks, errors };
}

/** A message of the user's, with the id that is its key. */
export function said(id, text) {
    return { id, role: 'user', parts: [{ type: 'text', text }] };
}

export function textOf(message) {
    const parts = message?.parts ?? [];
    return parts
        .filter((part) => part.type === 'text')
        .map((part) => part.text)
        .join('');
}

/** The chunks that end a stream. An `error` is followed by the `finish` that counts. */
export function terminals(chunks) {
    return chunks.map((chunk) => chunk.type).filter((type) => type === 'finish' || type === 'abort');
}

/** Exactly one terminal, and nothing behind it. */
export function endsOnce(chunks, terminal = 'finish') {
    assert.deepEqual(terminals(chunks), [terminal]);
    assert.equal(chunks.at(-1).type, terminal);
}

/** The same bytes: as JSON, keys in the order in which they came. */
export function identical(message, expected, about) {
    assert.equal(JSON.stringify(message), JSON.stringify(expected), about);
}

/** What one generation leaves out of its parts and the others keep, by the type of the part. */
const OPTIONAL = { reasoning: ['id'], tool: ['rawInput'] };

/**
 * The same message as the server's history tells it. That one says beside it when it was said, and keeps of each part what
 * any of the generations keeps.
 */
export function inHistory(message, shown, about) {
    const { id, role, parts } = JSON.parse(JSON.stringify(message));
    const told = shown.parts.map((part, at) => {
        const optional = OPTIONAL[part.toolCallId === undefined ? part.type : 'tool'] ?? [];
        const left = optional.filter((key) => parts[at]?.[key] === undefined);
        return Object.fromEntries(Object.entries(part).filter(([key]) => !left.includes(key)));
    });
    assert.deepEqual({ id: shown.id, role: shown.role, parts: told }, { id, role, parts }, about);
}
