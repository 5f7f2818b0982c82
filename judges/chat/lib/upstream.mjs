// A program with the `ai` package behind the server, as people have them; here the test says when it says what.

import { once } from 'node:events';
import http from 'node:http';

import { until } from './server.mjs';

export class Upstream {
    #turns = [];

    /** A program that ends with the test `t`. */
    static async open(t, generation) {
        const upstream = new Upstream();
        const listener = http.createServer((request, response) => upstream.#take(generation, request, response));
        listener.listen(0, '127.0.0.1');
        await once(listener, 'listening');
        t.after(() => {
            listener.closeAllConnections();
            listener.close();
        });
        upstream.env = {
            BOWLINE_DEFAULT_AGENT: 'program',
            BOWLINE_AGENTS__PROGRAM__KIND: 'http',
            BOWLINE_AGENTS__PROGRAM__URL: `http://127.0.0.1:${listener.address().port}/api/chat`,
        };
        return upstream;
    }

    async #take(generation, request, response) {
        const { createUIMessageStream, pipeUIMessageStreamToResponse } = generation.ai;
        let body = '';
        for await (const bytes of request) body += bytes;
        let end;
        const ended = new Promise((resolve) => (end = resolve));
        const turn = { message: JSON.parse(body).message, response, end, left: once(response, 'close') };
        const stream = createUIMessageStream({
            execute: async ({ writer }) => {
                turn.write = (chunk) => writer.write(chunk);
                this.#turns.push(turn);
                await ended;
            },
        });
        pipeUIMessageStreamToResponse({ response, stream });
        response.flushHeaders();
    }

    /** The request for this message, once it has come; `end` ends its answer. */
    turn(message) {
        return until(`the program is asked for ${message}`, () => this.#turns.find((turn) => turn.message === message));
    }

    get asked() {
        return this.#turns.length;
    }
}
