// Measures what a reload costs: the replay of a long turn, folded and unfolded, beside a plain server that sends the same bytes.
// Usage: node bench.mjs BINARY [DELTAS]

import http from 'node:http';
import { once } from 'node:events';
import path from 'node:path';

process.env.JUDGES_BINARY = path.resolve(process.argv[2] ?? '../../target/release/bowline');
const DELTAS = Number(process.argv[3] ?? 10_000);
const ROUNDS = 15;

const { Server } = await import('./lib/server.mjs');
const { generations, parse } = await import('./lib/generations.mjs');

const endings = [];
const server = await Server.start({ after: (end) => endings.push(end) });
const session = await server.newSession();
const started = await fetch(`${server.origin}/api/chat/sessions/${session}/stream`, {
    method: 'POST',
    body: JSON.stringify({ message: `/long ${DELTAS} 0` }),
});
const task = started.headers.get('x-workflow-run-id');
await started.text();

/** One replay: bytes and frames, and milliseconds to the first byte and to the last. */
async function replay(url) {
    const before = performance.now();
    const response = await fetch(url);
    let [bytes, frames, first, newline] = [0, 0, 0, false];
    for await (const piece of response.body) {
        first ||= performance.now() - before;
        bytes += piece.length;
        for (const byte of piece) {
            if (byte === 10 && newline) frames += 1;
            newline = byte === 10 && !newline;
        }
    }
    return { bytes, frames, first, ms: performance.now() - before };
}

const median = (numbers) => numbers.toSorted((a, b) => a - b)[numbers.length >> 1];

async function measure(url) {
    const rounds = [];
    await replay(url);
    for (let round = 0; round < ROUNDS; round += 1) rounds.push(await replay(url));
    const [{ bytes, frames }] = rounds;
    return { bytes, frames, first: median(rounds.map(({ first }) => first)), ms: median(rounds.map(({ ms }) => ms)) };
}

const unfolded = `${server.origin}/api/chat/tasks/${task}/stream?fold=0`;
const folded = `${server.origin}/api/chat/tasks/${task}/stream`;
const kept = Buffer.from(await (await fetch(unfolded)).arrayBuffer());
const plain = http.createServer((_, response) => response.end(kept)).listen(0, '127.0.0.1');
await once(plain, 'listening');

const rows = {
    unfolded: await measure(unfolded),
    folded: await measure(folded),
    'unfolded, from memory by a plain Node.js server': await measure(`http://127.0.0.1:${plain.address().port}/`),
};
const base = rows.unfolded;
console.log(`replay of a turn with ${DELTAS} deltas; median of ${ROUNDS}; ratios to unfolded`);
console.log('| what | bytes | ratio | frames | ratio | first byte ms | last byte ms | ratio |');
console.log('|---|---|---|---|---|---|---|---|');
for (const [what, { bytes, frames, first, ms }] of Object.entries(rows)) {
    const ratio = (value, of) => (value / of).toFixed(4);
    const cells = [bytes, ratio(bytes, base.bytes), frames, ratio(frames, base.frames), first.toFixed(1), ms.toFixed(1), ratio(ms, base.ms)];
    console.log(`| ${what} | ${cells.join(' | ')} |`);
}

console.log('\nuntil a parser has the whole message; once each');
console.log('| parser | unfolded ms | folded ms | ratio |');
console.log('|---|---|---|---|');
for (const generation of generations) {
    const times = [];
    for (const url of [unfolded, folded]) {
        const before = performance.now();
        await parse(generation, (await fetch(url)).body);
        times.push(performance.now() - before);
    }
    console.log(`| ${generation.name} | ${times[0].toFixed(0)} | ${times[1].toFixed(1)} | ${(times[1] / times[0]).toFixed(5)} |`);
}

plain.close();
plain.closeAllConnections();
for (const end of endings) await end();
process.exit(0);
