// Real servers behind the hub, over stdio, Streamable HTTP and HTTP+SSE, and real clients before it: what each server says must
// arrive, also after it was killed. Takes the binary and the Python that has the packages of requirements.txt.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { createServer } from 'node:http';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { once } from 'node:events';
import { createServer as createSocket } from 'node:net';
import { join } from 'node:path';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { fixture, hub, scratch, start, stop } from './support.mjs';

const [, , binary, python] = process.argv;
const module = (name) => join(import.meta.dirname, `node_modules/@modelcontextprotocol/${name}/dist/index.js`);
const dir = scratch();
const files = join(dir, 'files');
mkdirSync(files);
writeFileSync(join(files, 'note.txt'), 'a note on disk');

async function freePort() {
  const socket = createSocket().listen(0, '127.0.0.1');
  await once(socket, 'listening');
  const { port } = socket.address();
  await new Promise((resolve) => socket.close(resolve));
  return port;
}

/** The reference server over HTTP, in one of its two ways. */
async function everything(way, port) {
  const options = { env: { PORT: String(port) }, output: 'stderr' };
  return start(process.execPath, [module('server-everything'), way], /(on|running|listening).*port|port \d+/i, options);
}

const page = createServer((request, response) => {
  if (request.url === '/robots.txt') return response.writeHead(404).end();
  return response.writeHead(200, { 'content-type': 'text/plain' }).end('a page of this machine');
}).listen(0, '127.0.0.1');
await once(page, 'listening');

const [streamable, sse] = [await freePort(), await freePort()];
let overHttp = await everything('streamableHttp', streamable);
await everything('sse', sse);
const both = await fixture();
const program = (name, ...args) => ({ command: process.execPath, args: [module(name), ...args] });
const ofPython = (name) => ({ command: python, args: ['-m', name] });
const front = await hub(binary, {
  everything: program('server-everything', 'stdio'),
  http: { url: `http://127.0.0.1:${streamable}/mcp` },
  sse: { url: `http://127.0.0.1:${sse}/sse`, type: 'sse' },
  files: program('server-filesystem', files),
  memory: { ...program('server-memory'), env: { MEMORY_FILE_PATH: join(dir, 'memory.jsonl') } },
  time: ofPython('mcp_server_time'),
  fetch: { command: python, args: ['-m', 'mcp_server_fetch', '--ignore-robots-txt', '--allow-private-ips'] },
  fixture: { url: both.url },
  older: { url: both.url, revision: '2025-11-25' },
});

const client = new Client({ name: 'judge', version: '1' });
await client.connect(new StreamableHTTPClientTransport(new URL(`${front.address}/mcp`)));
const text = (result) => result.content.map((part) => part.text ?? '').join('\n');
const call = (name, args = {}) => client.callTool({ name, arguments: args });

/** Calls until it works: a call that met a dying server says so, and is not repeated by anybody but us. */
async function works(name, args, expected) {
  for (let round = 0; round < 50; round += 1) {
    const result = await call(name, args);
    if (!result.isError) return assert.match(text(result), expected);
    assert.ok(['OUTCOME_UNKNOWN', 'SERVER_UNAVAILABLE'].includes(result.structuredContent?.code), text(result));
  }
  return assert.fail(`${name} never worked`);
}

/** Programs of Python take a while to start on a busy machine. */
async function connected() {
  for (let round = 0; round < 600; round += 1) {
    const { servers } = (await call('list_servers')).structuredContent;
    if (servers.every((server) => server.connected)) return servers;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  return assert.fail('some server never connected');
}

await connected();
const names = (await client.listTools()).tools.map((tool) => tool.name);
const offered = ['everything__echo', 'http__echo', 'sse__echo', 'files__read_text_file', 'memory__read_graph', 'time__convert_time', 'fetch__fetch'];
for (const name of offered) assert.ok(names.includes(name), `${name} is not listed`);

for (const server of ['everything', 'http', 'sse']) await works(`${server}__echo`, { message: server }, new RegExp(`Echo: ${server}`));
await works('files__read_text_file', { path: join(files, 'note.txt') }, /a note on disk/);
await works('files__write_file', { path: join(files, 'new.txt'), content: 'written' }, /new\.txt/);
assert.equal(readFileSync(join(files, 'new.txt'), 'utf8'), 'written');
const knot = { name: 'bowline', entityType: 'knot', observations: ['does not slip'] };
await works('memory__create_entities', { entities: [knot] }, /does not slip/);
const zones = { source_timezone: 'Europe/Paris', time: '12:00', target_timezone: 'Asia/Tokyo' };
await works('time__convert_time', zones, /Asia\/Tokyo/);
await works('fetch__fetch', { url: `http://127.0.0.1:${page.address().port}/` }, /a page of this machine/);

// A server's own refusal arrives as its own.
const refused = await call('files__read_text_file', { path: '/etc/passwd' });
assert.ok(refused.isError && /denied|outside/.test(text(refused)), text(refused));

// The one over HTTP is killed and started again where it was; the sessions that it forgot are nobody's business.
await stop(overHttp, 'SIGKILL');
overHttp = await everything('streamableHttp', streamable);
await works('http__echo', { message: 'again' }, /Echo: again/);
const listed = await connected();
await client.close();
console.log(`the hub carries ${listed.length} servers of npm, PyPI and our own`);

const judged = spawnSync(python, [join(import.meta.dirname, 'client.py'), binary, front.address, front.file], { stdio: 'inherit' });
assert.equal(judged.status, 0);
await stop(front);
process.exit(0);
