// Measures one `tools/call`: direct, through the hub, through public proxies; then what a restart of the backend does to it.
import { execFile } from 'node:child_process';
import { connect, createServer } from 'node:net';
import { cpus, loadavg } from 'node:os';
import { once } from 'node:events';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { hub, start, stop } from '../../judges/mcp/support.mjs';

const [, , binary, tools, seconds] = process.argv;
const peer = join(tools, 'peer');
const run = promisify(execFile);
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function freePort() {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return port;
}

const real = (port) => start(join(tools, 'server/release/backend'), [String(port)], /listening at (\S+)/);
const bare = (port) => start(peer, ['backend', String(port)], /listening at (\S+)/);

/** Starts a proxy and waits until its port is open. */
async function proxy(command, args, port) {
  const started = start(command, args, /(?!)/);
  let left = null;
  started.catch((error) => (left = error));
  for (;;) {
    if (left) throw left;
    const socket = connect(port, '127.0.0.1');
    const open = await Promise.race([once(socket, 'connect').then(() => true), once(socket, 'error').then(() => false, () => false)]).catch(() => false);
    socket.destroy();
    if (open) return;
    await sleep(100);
  }
}

async function load(url, inFlight) {
  const { stdout } = await run(peer, ['load', url, String(inFlight), seconds]);
  return JSON.parse(stdout);
}

const [port, barePort] = [await freePort(), await freePort()];
let served = await real(port);
await bare(barePort);
const direct = `http://127.0.0.1:${port}/mcp`;
const directBare = `http://127.0.0.1:${barePort}/mcp`;
const servers = { http: { url: direct }, bare: { url: directBare }, pipe: { command: peer, args: ['stdio'] } };
const front = await hub(binary, servers, { env: { BOWLINE_LOG__LEVEL: 'warn' } });
const [forMcpProxy, forSupergateway, forFastmcp] = [await freePort(), await freePort(), await freePort()];
await proxy('mcp-proxy', ['--port', forMcpProxy, '--host', '127.0.0.1', '--server', 'stream', '--', peer, 'stdio'].map(String), forMcpProxy);
const gateway = ['--stdio', `${peer} stdio`, '--outputTransport', 'streamableHttp', '--stateful', '--port', forSupergateway, '--logLevel', 'none'];
await proxy('supergateway', gateway.map(String), forSupergateway);
const fast = ['run', direct, '--transport', 'http', '--host', '127.0.0.1', '--port', forFastmcp, '--no-banner'];
await proxy(join(tools, 'venv/bin/fastmcp'), fast.map(String), forFastmcp);

// Each is compared with the `direct` before it.
const paths = [
  ['direct: rmcp 3.8.0', direct],
  ['Bowline, rmcp behind it', `${front.address}/mcp/http`],
  ['fastmcp 4.1.2, rmcp behind it', `http://127.0.0.1:${forFastmcp}/mcp`],
  ['Bowline, a program behind it', `${front.address}/mcp/pipe`],
  ['npm mcp-proxy 6.7.19, a program behind it', `http://127.0.0.1:${forMcpProxy}/mcp`],
  ['supergateway 4.0.0, a program behind it', `http://127.0.0.1:${forSupergateway}/mcp`],
  ['direct: a loop that parses nothing', directBare],
  ['Bowline, that loop behind it', `${front.address}/mcp/bare`],
];
console.log(`${cpus().length} cores (${cpus()[0].model.trim()}), load ${loadavg()[0].toFixed(1)}, ${seconds} s each`);
console.log('| path | in flight | calls/s | p50 | p99 | added at p50 | direct is faster by |');
console.log('|---|---|---|---|---|---|---|');
const ms = (us) => `${(us / 1000).toFixed(2)} ms`;
for (const inFlight of [1, 16]) {
  let base = null;
  for (const [name, url] of paths) {
    const { calls_s: calls, p50_us: p50, p99_us: p99 } = await load(url, inFlight);
    if (name.startsWith('direct')) base = { calls, p50 };
    const ratio = (base.calls / calls).toFixed(1);
    console.log(`| ${name} | ${inFlight} | ${calls} | ${ms(p50)} | ${ms(p99)} | ${ms(p50 - base.p50)} | ${ratio} × |`);
  }
}

// The restart drill: what is in flight when the backend is killed, and the first call after it listens again.
async function session() {
  const headers = { 'content-type': 'application/json', accept: 'application/json, text/event-stream' };
  const url = `${front.address}/mcp/http`;
  const post = (message, more) => fetch(url, { method: 'POST', headers: { ...headers, ...more }, body: JSON.stringify({ jsonrpc: '2.0', ...message }) });
  const params = { protocolVersion: '2025-11-25', capabilities: {}, clientInfo: { name: 'drill', version: '1' } };
  const begun = await post({ id: 0, method: 'initialize', params });
  const own = { 'mcp-session-id': begun.headers.get('mcp-session-id') };
  await begun.text();
  return async (name) => (await post({ id: 1, method: 'tools/call', params: { name, arguments: {} } }, own)).text();
}
const call = await session();
const [ends, firsts] = [[], []];
for (let round = 0; round < 20; round += 1) {
  const running = call('sleep');
  await sleep(300);
  const killed = performance.now();
  served.child.kill('SIGKILL');
  const ended = await running;
  ends.push(performance.now() - killed);
  if (!ended.includes('OUTCOME_UNKNOWN')) throw new Error(`a call that was cut ended so: ${ended}`);
  served = await real(port);
  const listens = performance.now();
  const first = await call('echo');
  firsts.push(performance.now() - listens);
  if (!first.includes('hello')) throw new Error(`the first call after the return: ${first}`);
}
const told = (values) => {
  values.sort((a, b) => a - b);
  return `median ${values[values.length >> 1].toFixed(0)} ms, longest ${values.at(-1).toFixed(0)} ms`;
};
console.log(`\n20 restarts: a call in flight ends after the kill: ${told(ends)}; the first call after the backend listens: ${told(firsts)}`);
await stop(front);
process.exit(0);
