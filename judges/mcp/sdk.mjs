// The official client before the reference server, with the hub between them; the server is killed in the middle.
import assert from 'node:assert/strict';
import { spawn, execFileSync } from 'node:child_process';
import { mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { ElicitRequestSchema, CreateMessageRequestSchema } from '@modelcontextprotocol/sdk/types.js';

const binary = process.argv[2];
const dir = mkdtempSync(join(tmpdir(), 'bowline-judges-mcp-'));
const everything = join(import.meta.dirname, 'node_modules/@modelcontextprotocol/server-everything/dist/index.js');
const servers = join(dir, 'mcp.json');
writeFileSync(servers, JSON.stringify({ mcpServers: { everything: { command: process.execPath, args: [everything, 'stdio', dir] } } }));

const server = spawn(binary, ['serve', '--listen', '127.0.0.1:0', '--store', `disk:${join(dir, 'data')}`], {
  env: { ...process.env, BOWLINE_HUB__SERVERS_FILE: servers },
  stdio: ['ignore', 'pipe', 'ignore'],
});
process.on('exit', () => server.kill());
const address = await new Promise((resolve, reject) => {
  let text = '';
  server.stdout.on('data', (chunk) => {
    text += chunk;
    const found = /serving at (http:\/\/\S+?)\//.exec(text);
    if (found) resolve(found[1]);
  });
  server.on('exit', () => reject(new Error('the server left')));
});

const capabilities = { sampling: {}, elicitation: {}, roots: {} };
async function connect(transport) {
  const client = new Client({ name: 'judge', version: '1' }, { capabilities });
  client.setRequestHandler(ElicitRequestSchema, async () => ({ action: 'accept', content: { name: 'Ann', check: true } }));
  client.setRequestHandler(CreateMessageRequestSchema, async () => ({
    role: 'assistant', model: 'judge', content: { type: 'text', text: 'a sample' },
  }));
  await client.connect(transport);
  return client;
}
const over = (path) => connect(new StreamableHTTPClientTransport(new URL(`${address}${path}`)));
const text = (result) => result.content.map((part) => part.text ?? '').join('\n');
// The oldest: numbers of processes begin anew now and then, so the lowest is not always the first.
const childOfHub = () => execFileSync('pgrep', ['-o', '-f', `${everything} stdio ${dir}`]).toString().trim().split('\n')[0];

const one = await over('/mcp/everything');
const tools = (await one.listTools()).tools.map((tool) => tool.name);
assert.ok(tools.includes('echo'), 'the reference server has its own names');
assert.match(text(await one.callTool({ name: 'echo', arguments: { message: 'hello' } })), /hello/);
assert.ok((await one.listResources()).resources.length > 0);
assert.ok((await one.listPrompts()).prompts.length > 0);

const all = await over('/mcp');
const merged = (await all.listTools()).tools.map((tool) => tool.name);
assert.ok(merged.includes('everything__echo') && merged.includes('list_servers'));
assert.match(text(await all.callTool({ name: 'everything__echo', arguments: { message: 'again' } })), /again/);

// Kill the first client's process. A call that was sent before the death was noticed says that it may have run; the next ones work. The
// other client has a process of its own, which goes on: that client hears of nothing.
process.kill(Number(childOfHub()), 'SIGKILL');
const endings = [];
for (let round = 0; round < 50 && endings.at(-1) !== 'worked'; round += 1) {
  const result = await one.callTool({ name: 'echo', arguments: { message: 'after the kill' } });
  if (result.isError) assert.ok(['OUTCOME_UNKNOWN', 'SERVER_UNAVAILABLE'].includes(result.structuredContent.code), text(result));
  else assert.match(text(result), /after the kill/);
  endings.push(result.isError ? result.structuredContent.code : 'worked');
}
assert.equal(endings.at(-1), 'worked', endings.join(', '));
assert.match(text(await all.callTool({ name: 'everything__echo', arguments: { message: 'here too' } })), /here too/);
const seen = await all.callTool({ name: 'await_activity', arguments: { timeout_ms: 1000 } });
const kinds = seen.structuredContent.events.map((event) => event.type);
for (const kind of ['server_disconnected', 'server_process_crashed']) assert.ok(!kinds.includes(kind), `${kind} in ${kinds}`);

// The same over stdio.
const stdio = await connect(new StdioClientTransport({ command: binary, args: ['mcp', '--servers', servers], cwd: dir }));
const overStdio = (await stdio.listTools()).tools.map((tool) => tool.name);
assert.deepEqual(overStdio, merged);
assert.match(text(await stdio.callTool({ name: 'everything__echo', arguments: { message: 'by pipe' } })), /by pipe/);

for (const client of [one, all, stdio]) await client.close();
server.kill('SIGTERM');
await new Promise((resolve) => server.on('exit', resolve));
assert.throws(childOfHub, 'no child outlives the hub');
console.log('the official client and the reference server are content');
process.exit(0);
