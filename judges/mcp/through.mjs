// A client behind the hub for the suite's client half: `node through.mjs BINARY KIND URL` lets the hub speak to the suite's server, and
// does through it what a client does: lists everything, calls every tool, and answers what it is asked. KIND is the revision of both sides
// (`legacy`, `modern`), or `crossed`: an older client that sees all servers at once, and a modern server.
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { ElicitRequestSchema } from '@modelcontextprotocol/sdk/types.js';
import { hub, stop } from './support.mjs';

const [, , binary, kind, url] = process.argv;
const revision = kind === 'legacy' ? '2025-11-25' : '2026-07-28';
const front = await hub(binary, { b: { url, revision } }, { env: { BOWLINE_LOG__LEVEL: 'error' } });
const [path, prefix] = kind === 'crossed' ? [`${front.address}/mcp`, 'b__'] : [`${front.address}/mcp/b`, ''];
// Some scenarios say what is to be called.
const { toolCalls } = JSON.parse(process.env.MCP_CONFORMANCE_CONTEXT ?? '{}');

const samples = { number: 2, integer: 2, boolean: true, array: [], object: {}, string: 'text' };
const fill = (schema) =>
  Object.fromEntries(Object.entries(schema?.properties ?? {}).map(([name, { type, default: given }]) => [name, given ?? samples[type] ?? 'text']));
const accept = (params) => ({ action: 'accept', content: fill(params.requestedSchema) });

/** A server that refuses the first dial is dialled again by itself. Who sees all servers at once does not wait for one of them. */
async function connected(client) {
  for (let look = 0; look < 300; look += 1) {
    const { structuredContent } = await client.callTool({ name: 'list_servers', arguments: {} });
    if (structuredContent.servers.every((server) => server.connected)) return;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  throw new Error('the server was never connected');
}

async function older() {
  const client = new Client({ name: 'judge', version: '1' }, { capabilities: { elicitation: { form: { applyDefaults: true } } } });
  client.setRequestHandler(ElicitRequestSchema, async ({ params }) => accept(params));
  await client.connect(new StreamableHTTPClientTransport(new URL(path)));
  if (prefix) await connected(client);
  const { tools } = await client.listTools().catch(() => ({ tools: [] }));
  const theirs = tools.filter((tool) => tool.name.startsWith(prefix));
  const all = theirs.map((tool) => ({ name: tool.name, arguments: fill(tool.inputSchema) }));
  const named = toolCalls?.map(({ name, arguments: given }) => ({ name: prefix + name, arguments: given }));
  for (const call of named ?? all) await client.callTool(call).catch(() => {});
  await client.close();
}

const META = 'io.modelcontextprotocol';
let next = 1;

async function ask(method, params = {}, headers = {}) {
  const _meta = {
    [`${META}/protocolVersion`]: '2026-07-28',
    [`${META}/clientInfo`]: { name: 'judge', version: '1' },
    [`${META}/clientCapabilities`]: { elicitation: {}, sampling: {}, roots: {} },
  };
  const name = params.name ?? params.uri;
  const standard = { 'mcp-protocol-version': '2026-07-28', 'mcp-method': method, ...(name ? { 'mcp-name': name } : {}) };
  const kinds = { 'content-type': 'application/json', accept: 'application/json, text/event-stream' };
  const body = JSON.stringify({ jsonrpc: '2.0', id: next++, method, params: { ...params, _meta } });
  const response = await fetch(path, { method: 'POST', headers: { ...kinds, ...standard, ...headers }, body });
  const text = await response.text();
  const last = text.startsWith('{') ? text : text.split('\n').filter((line) => line.startsWith('data: {')).at(-1)?.slice(6);
  return JSON.parse(last ?? '{}');
}

/** A header's value, coded where it is not plain. */
function header(value) {
  const text = String(value);
  return /^[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?$/.test(text) && !text.startsWith('=?base64?') ? text : `=?base64?${Buffer.from(text).toString('base64')}?=`;
}

async function modern() {
  await ask('server/discover');
  const { tools = [] } = (await ask('tools/list')).result ?? {};
  for (const { name, inputSchema } of tools) {
    let params = { name, arguments: fill(inputSchema) };
    const annotated = Object.entries(inputSchema?.properties ?? {}).filter(([, property]) => property['x-mcp-header']);
    const mirrored = annotated.map(([argument, property]) => [`mcp-param-${property['x-mcp-header']}`, header(params.arguments[argument])]);
    for (let round = 0; round < 5; round += 1) {
      const { result } = await ask('tools/call', params, Object.fromEntries(mirrored));
      if (result?.resultType !== 'input_required') break;
      const answers = Object.entries(result.inputRequests ?? {}).map(([key, question]) => [key, accept(question.params)]);
      const state = result.requestState === undefined ? {} : { requestState: result.requestState };
      params = { name, arguments: params.arguments, inputResponses: Object.fromEntries(answers), ...state };
    }
  }
  const { resources = [] } = (await ask('resources/list')).result ?? {};
  for (const { uri } of resources) await ask('resources/read', { uri });
  const { prompts = [] } = (await ask('prompts/list')).result ?? {};
  for (const { name } of prompts) await ask('prompts/get', { name, arguments: {} });
}

await (kind === 'modern' ? modern() : older());
await stop(front);
process.exit(0);
