// The official PyPI package, unmodified, as a judge of its own.

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { test } from 'node:test';
import { promisify } from 'node:util';

import { Server } from './support.mjs';

test('the Python client is given the same whole, streamed, resumed, in the background and after a question', async (t) => {
    const server = await Server.start(t);
    const script = new URL('../judge.py', import.meta.url).pathname;
    const { stdout } = await promisify(execFile)(process.env.JUDGES_PYTHON, [script, `${server.origin}/v1`]);
    assert.match(stdout, /^judged \d+ claims\n$/);
});
