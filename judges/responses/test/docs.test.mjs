// The examples of docs/responses.md run as they stand there; only the address is that of the server here.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';

import { Server } from './support.mjs';

const here = fileURLToPath(new URL('..', import.meta.url));

async function run(command, args, program) {
    const child = spawn(command, args, { cwd: here, stdio: ['pipe', 'pipe', 'pipe'] });
    let [said, errors] = ['', ''];
    child.stdout.on('data', (bytes) => (said += bytes));
    child.stderr.on('data', (bytes) => (errors += bytes));
    child.stdin.end(program);
    const [code] = await once(child, 'close');
    assert.equal(code, 0, errors);
    return said;
}

test('every example in the document runs, and says what it should', async (t) => {
    const server = await Server.start(t);
    const text = await readFile(new URL('../../../docs/responses.md', import.meta.url), 'utf8');
    const blocks = [...text.matchAll(/```(js|python)\n(.*?)```/gs)];
    const said = { js: '', python: '' };
    for (const [, language, written] of blocks) {
        const program = written.replaceAll('http://127.0.0.1:8080', server.origin);
        const node = [process.execPath, ['--input-type=module', '-'], program];
        const python = [process.env.JUDGES_PYTHON, ['-'], program];
        said[language] += await run(...(language === 'js' ? node : python));
    }
    for (const words of [/tok20\n/, / completed\n/, /confirmed: launch/, /weather: sunny in Rome/, /over a socket/]) {
        assert.match(said.js, words);
    }
    for (const words of [/^hello\n/, /\/echo hello\n/, /tok20completed\n/, /weather: sunny in Rome/]) {
        assert.match(said.python, words);
    }
});
