// The real server in a process of its own, on a free port and in a directory that goes with the test.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import readline from 'node:readline';

const BINARY = process.env.JUDGES_BINARY;

/** Servers that run, so that none outlives its tests, however those end. */
const running = new Set();
process.on('exit', () => running.forEach((child) => child.kill('SIGKILL')));
for (const signal of ['SIGTERM', 'SIGINT']) process.on(signal, () => process.exit(1));

/** Only a hang reaches this. */
export const PATIENCE_MS = 60_000;

export class Server {
    #child;
    #said = '';

    constructor(dir, env) {
        this.dir = dir;
        this.env = env;
    }

    /** Starts a server that ends with the test `t`. `env` holds settings, as `BOWLINE_SECTION__KEY`. */
    static async start(t, env = {}) {
        assert.ok(BINARY, 'JUDGES_BINARY must name the server; start the tests with ./test.sh BINARY');
        const dir = await mkdtemp(path.join(tmpdir(), 'bowline-judges-'));
        const server = new Server(dir, env);
        t.after(async () => {
            await server.kill();
            await rm(dir, { recursive: true, force: true });
            assert.ok(!server.#said.includes('panicked'), `the server panicked:\n${server.#said}`);
        });
        await server.#spawn();
        return server;
    }

    async #spawn() {
        const inherited = Object.entries(process.env).filter(([key]) => !key.startsWith('BOWLINE_'));
        const store = `disk:${path.join(this.dir, 'data')}`;
        this.#child = spawn(BINARY, ['serve', '--listen', '127.0.0.1:0', '--store', store], {
            cwd: this.dir,
            env: { ...Object.fromEntries(inherited), BOWLINE_LOG__LEVEL: 'warn', ...this.env },
            stdio: ['ignore', 'pipe', 'pipe'],
        });
        const child = this.#child;
        running.add(child);
        child.once('exit', () => running.delete(child));
        child.stderr.on('data', (bytes) => (this.#said += bytes));
        const lines = readline.createInterface({ input: this.#child.stdout });
        const [address] = await within('the server says where it serves', (signal) => {
            const found = once(lines, 'address', { signal });
            lines.on('line', (line) => {
                const served = /serving at (http:\/\/[^/\s]+)/.exec(line);
                if (served) lines.emit('address', served[1]);
            });
            const died = once(this.#child, 'exit', { signal }).then(() => {
                throw new Error(`the server ended before it served:\n${this.#said}`);
            });
            return Promise.race([found, died]);
        });
        this.origin = address;
        this.port = Number(new URL(address).port);
    }

    /** kill -9. */
    async kill() {
        if (!this.#child || this.#child.exitCode !== null || this.#child.signalCode !== null) return;
        const gone = once(this.#child, 'exit');
        this.#child.kill('SIGKILL');
        await gone;
    }

    /** kill -9, then the same again on the same directory; its port is another one. */
    async killAndRestart() {
        await this.kill();
        await this.#spawn();
    }

    /** One request with a JSON answer. */
    async call(method, where, body, headers = {}) {
        const text = body === undefined || typeof body === 'string' ? body : JSON.stringify(body);
        const response = await fetch(this.origin + where, {
            method,
            headers: { ...(text === undefined ? {} : { 'content-type': 'application/json' }), ...headers },
            body: text,
        });
        const answer = await response.text();
        const json = response.headers.get('content-type')?.includes('json');
        return { status: response.status, headers: response.headers, text: answer, body: json ? JSON.parse(answer) : null };
    }

    async get(where, headers) {
        const answer = await this.call('GET', where, undefined, headers);
        assert.equal(answer.status, 200, `${where}: ${answer.text}`);
        return answer.body;
    }

    task(id) {
        return this.get(`/api/chat/tasks/${id}`);
    }

    session(id) {
        return this.get(`/api/chat/sessions/${id}`);
    }

    async newSession() {
        const made = await this.call('POST', '/api/chat/sessions', {});
        assert.equal(made.status, 201, made.text);
        return made.body.id;
    }
}

/** Runs something that must not hang. */
export async function within(what, run) {
    const signal = AbortSignal.timeout(PATIENCE_MS);
    const late = new Promise((_, reject) => {
        signal.addEventListener('abort', () => reject(new Error(`waited too long: ${what}`)), { once: true });
    });
    late.catch(() => {});
    return Promise.race([run(signal), late]);
}

/** Asks again until the answer is yes. The pause only spares the processor: no claim rests on its length. */
export async function until(what, ask) {
    const started = Date.now();
    for (;;) {
        const answer = await ask();
        if (answer) return answer;
        assert.ok(Date.now() - started < PATIENCE_MS, `waited too long: ${what}`);
        await new Promise((resolve) => setTimeout(resolve, 5));
    }
}

/** Does the same for each item, `width` of them at a time. */
export async function each(items, width, act) {
    const queue = [...items];
    const workers = Array.from({ length: width }, async () => {
        for (let item = queue.shift(); item !== undefined; item = queue.shift()) await act(item);
    });
    await Promise.all(workers);
}
