// An MCP server to try the hub with: both eras over HTTP, the older one over stdio. Needs nothing but Node.js.
// It writes down each execution before it answers, so that a test can count what really ran.
import { createServer } from 'node:http';
import { appendFileSync, existsSync, readFileSync, writeFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { randomUUID } from 'node:crypto';
import { spawn } from 'node:child_process';

const options = Object.fromEntries(process.argv.slice(2).map((word) => word.replace(/^--/, '').split('=')));
const era = options.era ?? 'legacy';
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const tools = ['echo', 'count', 'ask', 'sample', 'grow', 'garbage', 'progress', 'odd'];
if (options.extra) tools.push(options.extra);
if (options.tasks) tools.push('job');
if (options.regional) tools.push('regional', 'unsound');
if (options.wild) tools.push('exit', 'twice', 'huge', 'deep');
if (options.child) spawn('sleep', ['1000'], { stdio: 'ignore' });
if (options.stderr) console.error(options.stderr);

// Arguments that are to be repeated in headers; those of `unsound` cannot be.
const annotated = {
  regional: { region: { type: 'string', 'x-mcp-header': 'Region' } },
  unsound: { region: { type: 'number', 'x-mcp-header': 'Region' } },
};

const describe = (name) => ({
  name,
  description: `the tool ${name}`,
  inputSchema: { type: 'object', ...(annotated[name] && { properties: annotated[name] }) },
  annotations: { readOnlyHint: name === 'echo', 'x-vendor': 1.5 },
});

// Tasks of the Tasks extension are in a directory, so that they outlive this process as those of a real server would.
const taskFile = (id) => `${options.tasks}/${id}`;
const tasksExtension = 'io.modelcontextprotocol/tasks';

function createTask(args) {
  const taskId = randomUUID();
  if (options.count) appendFileSync(options.count, `${args.id}\n`);
  writeFileSync(taskFile(taskId), JSON.stringify({ id: args.id, question: args.question, cancelled: false }));
  return { resultType: 'task', taskId, status: 'working', ttlMs: 60_000, pollIntervalMs: 50 };
}

// A task is over when its test says so, by a file that is named after what the test calls it.
function taskState(taskId) {
  if (!options.tasks || !existsSync(taskFile(taskId))) throw { code: -32602, message: 'Unknown task' };
  const task = JSON.parse(readFileSync(taskFile(taskId), 'utf8'));
  const state = { taskId, ttlMs: 60_000, pollIntervalMs: 50 };
  if (task.cancelled) return { ...state, status: 'cancelled' };
  if (task.question && !task.answer) {
    const params = { mode: 'form', message: task.question, requestedSchema: { type: 'object', properties: {} } };
    return { ...state, status: 'input_required', inputRequests: { one: { method: 'elicitation/create', params } } };
  }
  if (!existsSync(taskFile(`${task.id}.done`))) return { ...state, status: 'working' };
  return { ...state, status: 'completed', result: text(`finished ${task.id} ${task.answer?.action ?? ''}`.trim()) };
}

function changeTask(taskId, change) {
  taskState(taskId);
  writeFileSync(taskFile(taskId), JSON.stringify({ ...JSON.parse(readFileSync(taskFile(taskId), 'utf8')), ...change }));
  return {};
}

const text = (value) => ({ content: [{ type: 'text', text: String(value) }] });

// What a tool does. `wire.ask` asks the client something, `wire.say` tells it something.
async function run(name, args, meta, wire) {
  switch (name) {
    case 'echo':
      return text(args.text ?? '');
    case 'count':
      if (options.count) appendFileSync(options.count, `${args.id}\n`);
      await sleep(args.ms ?? 0);
      return text(`done ${args.id}`);
    case 'ask': {
      const asked = await wire.ask('elicitation/create', {
        mode: 'form',
        message: args.question ?? 'your name?',
        requestedSchema: { type: 'object', properties: { name: { type: 'string' } } },
        ...(args.related && { _meta: { progressToken: meta?.progressToken } }),
      });
      return text(`${asked.action} ${asked.content?.name ?? ''}`.trim());
    }
    case 'sample': {
      const asked = await wire.ask('sampling/createMessage', {
        messages: [{ role: 'user', content: { type: 'text', text: args.prompt ?? 'hi' } }],
        maxTokens: 10,
      });
      return text(asked.content?.text ?? 'nothing');
    }
    case 'grow':
      tools.push(args.name);
      wire.broadcast('notifications/tools/list_changed');
      return text('grown');
    case 'progress':
      for (let step = args.from ?? 1; step <= (args.to ?? 3); step += 1) {
        wire.say('notifications/progress', { progressToken: meta?.progressToken, progress: step, total: args.to ?? 3 });
        await sleep(args.ms ?? 10);
      }
      return text('progressed');
    case 'regional':
      return text(`in ${args.region}`);
    case 'exit':
      return process.exit(args.code);
    case 'twice':
      return text('once');
    case 'huge':
      return text('x'.repeat(17 << 20));
    case 'deep':
      return { content: [], deep: JSON.parse('['.repeat(200) + ']'.repeat(200)) };
    case 'odd':
      return { content: [{ type: 'hologram', depth: 3 }], vendor: { exact: 1.5 }, isError: false };
    default:
      throw { code: -32602, message: `no tool ${name}` };
  }
}

async function answer(method, params, wire) {
  switch (method) {
    case 'ping':
      // A server that answers calls and no checks.
      if ('deaf' in options) await new Promise(() => {});
      return {};
    case 'server/discover':
      if (era === 'legacy') throw { code: -32601, message: 'Method not found' };
      return {
        supportedVersions: era === 'both' ? ['2026-07-28', '2025-11-25'] : ['2026-07-28'],
        capabilities: { tools: { listChanged: true } },
        _meta: { 'io.modelcontextprotocol/serverInfo': { name: 'fixture', version: '1' } },
      };
    case 'tools/list':
      return { tools: tools.map(describe) };
    case 'resources/list':
      return { resources: [{ uri: 'test://one', name: 'one' }] };
    case 'resources/templates/list':
      return { resourceTemplates: [] };
    case 'resources/read':
      return { contents: [{ uri: params.uri, text: 'contents', 'x-new': true }] };
    case 'resources/subscribe':
      wire.subscribe(params.uri);
      return {};
    case 'resources/unsubscribe':
      return {};
    case 'prompts/list':
      return { prompts: [{ name: 'greet' }] };
    case 'prompts/get':
      return { messages: [{ role: 'user', content: { type: 'text', text: 'hello' } }] };
    case 'logging/setLevel':
      if (options.count) appendFileSync(options.count, `level ${params.level}\n`);
      return {};
    case 'tasks/get':
      return taskState(params.taskId);
    case 'tasks/update':
      return changeTask(params.taskId, { answer: params.inputResponses.one });
    case 'tasks/cancel':
      return changeTask(params.taskId, { cancelled: true });
    case 'tools/call':
      if (params.name === 'job' && options.tasks) {
        const can = params._meta?.['io.modelcontextprotocol/clientCapabilities']?.extensions?.[tasksExtension];
        if (!can) throw { code: -32021, message: 'the Tasks extension is needed' };
        return createTask(params.arguments);
      }
      return run(params.name, params.arguments ?? {}, params._meta, wire);
    default:
      throw { code: -32601, message: 'Method not found' };
  }
}

const initialize = (params) => ({
  protocolVersion: params.protocolVersion,
  capabilities: { tools: { listChanged: true }, resources: { subscribe: true }, prompts: {}, logging: {} },
  serverInfo: { name: 'fixture', version: '1' },
});

// One client's questions that wait for an answer.
class Questions {
  waiting = new Map();
  next = 1;
  ask(send, method, params) {
    const id = `q${this.next++}`;
    return new Promise((resolve, reject) => {
      this.waiting.set(id, { resolve, reject });
      send({ jsonrpc: '2.0', id, method, params });
    });
  }
  settle(message) {
    const waiting = this.waiting.get(message.id);
    this.waiting.delete(message.id);
    if (message.error) waiting?.reject({ code: -32000, message: `refused: ${message.error.message}` });
    else waiting?.resolve(message.result);
  }
}

async function respond(message, wire, send) {
  try {
    const result = message.method === 'initialize' ? initialize(message.params) : await answer(message.method, message.params ?? {}, wire);
    if (message.params?.name === 'garbage') return send({ jsonrpc: '2.0', id: 'not-yours', result: {} });
    send({ jsonrpc: '2.0', id: message.id, result });
    if (message.params?.name === 'twice') send({ jsonrpc: '2.0', id: message.id, result: text('again') });
  } catch (error) {
    if (message.params?.name === 'garbage') return send({ jsonrpc: '2.0', id: 'not-yours', result: {} });
    send({ jsonrpc: '2.0', id: message.id, error: { code: error.code ?? -32603, message: error.message ?? 'broken' } });
  }
}

function stdio() {
  const questions = new Questions();
  const send = (message) => process.stdout.write(`${JSON.stringify(message)}\n`);
  const wire = {
    ask: (method, params) => questions.ask(send, method, params),
    say: (method, params) => send({ jsonrpc: '2.0', method, params }),
    broadcast: (method) => send({ jsonrpc: '2.0', method }),
    subscribe: (uri) => setTimeout(() => send({ jsonrpc: '2.0', method: 'notifications/resources/updated', params: { uri } }), 50),
  };
  createInterface({ input: process.stdin }).on('line', (line) => {
    const message = JSON.parse(line);
    if (message.method && message.id !== undefined) respond(message, wire, send);
    else if (!message.method) questions.settle(message);
  }).on('close', () => process.exit(0));
}

const sessions = new Map();

function legacy(request, response, message) {
  const id = request.headers['mcp-session-id'];
  if (message?.method === 'initialize') {
    const made = randomUUID();
    sessions.set(made, { questions: new Questions(), stream: null });
    response.writeHead(200, { 'content-type': 'application/json', 'mcp-session-id': made });
    return response.end(JSON.stringify({ jsonrpc: '2.0', id: message.id, result: initialize(message.params) }));
  }
  const session = sessions.get(id);
  if (!session) {
    // As the reference server does: no id, so that nobody can tell what it answers.
    response.writeHead(400, { 'content-type': 'application/json' });
    return response.end(JSON.stringify({ jsonrpc: '2.0', error: { code: -32000, message: 'Bad Request: No valid session ID provided' } }));
  }
  if (request.method === 'GET' && 'no-stream' in options) {
    if (options['no-stream']) appendFileSync(options['no-stream'], 'asked\n');
    return response.writeHead(405).end();
  }
  if (request.method === 'GET') {
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    response.write(': open\n\n');
    session.stream = response;
    return undefined;
  }
  if (request.method === 'DELETE') {
    sessions.delete(id);
    return response.writeHead(200).end();
  }
  if (!message.method) {
    session.questions.settle(message);
    return response.writeHead(202).end();
  }
  if (message.id === undefined) return response.writeHead(202).end();
  response.writeHead(200, { 'content-type': 'text/event-stream' });
  const event = (stream, value) => stream?.write(`data: ${JSON.stringify(value)}\n\n`);
  const wire = {
    ask: (method, params) => session.questions.ask((value) => event(response, value), method, params),
    say: (method, params) => event(response, { jsonrpc: '2.0', method, params }),
    broadcast: (method) => sessions.forEach((other) => event(other.stream, { jsonrpc: '2.0', method })),
    subscribe: (uri) => setTimeout(() => event(session.stream, { jsonrpc: '2.0', method: 'notifications/resources/updated', params: { uri } }), 50),
  };
  return respond(message, wire, (value) => {
    event(response, value);
    setImmediate(() => response.writableEnded || response.end());
  });
}

const listeners = new Set();

// The modern era: each request stands alone; a question is a result, and its answer comes with the next request.
async function modern(request, response, message) {
  const reply = (status, body) => {
    response.writeHead(status, { 'content-type': 'application/json' });
    response.end(JSON.stringify(body));
  };
  if (message.method === 'subscriptions/listen') {
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    const meta = { 'io.modelcontextprotocol/subscriptionId': message.id };
    response.write(`data: ${JSON.stringify({ jsonrpc: '2.0', method: 'notifications/subscriptions/acknowledged', params: { _meta: meta, notifications: message.params.notifications } })}\n\n`);
    const listener = { response, meta };
    listeners.add(listener);
    response.on('close', () => listeners.delete(listener));
    return;
  }
  if (message.id === undefined) return void response.writeHead(202).end();
  const region = message.params?.name === 'regional' ? message.params.arguments?.region : undefined;
  if (request.headers['mcp-param-region'] !== region) {
    return reply(400, { jsonrpc: '2.0', id: message.id, error: { code: -32020, message: 'Header mismatch' } });
  }
  const state = {};
  const wire = {
    ask: async (method, params) => {
      const given = message.params.inputResponses?.question;
      if (given) return given;
      state.question = { method, params };
      throw state;
    },
    say: () => {},
    broadcast: (method) => listeners.forEach(({ response: stream, meta }) => stream.write(`data: ${JSON.stringify({ jsonrpc: '2.0', method, params: { _meta: meta } })}\n\n`)),
    subscribe: () => {},
  };
  try {
    const result = await answer(message.method, message.params ?? {}, wire);
    reply(200, { jsonrpc: '2.0', id: message.id, result: { resultType: 'complete', ttlMs: 0, cacheScope: 'public', ...result } });
  } catch (error) {
    if (error === state) {
      return reply(200, { jsonrpc: '2.0', id: message.id, result: { resultType: 'input_required', inputRequests: { question: state.question }, requestState: 'asked' } });
    }
    reply(error.code === -32601 ? 404 : 200, { jsonrpc: '2.0', id: message.id, error: { code: error.code ?? -32603, message: error.message ?? 'broken' } });
  }
}

// HTTP+SSE of 2024-11-05: one stream out, POSTs in.
const streams = new Map();

function sse(request, response, message) {
  if (request.method === 'GET' && request.url === '/sse') {
    const id = randomUUID();
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    response.write(`event: endpoint\ndata: /messages?session=${id}\n\n`);
    streams.set(id, { response, questions: new Questions() });
    return undefined;
  }
  const found = streams.get(new URL(request.url, 'http://x').searchParams.get('session'));
  if (request.method !== 'POST' || !found) return response.writeHead(404).end();
  response.writeHead(202).end();
  const send = (value) => found.response.write(`event: message\ndata: ${JSON.stringify(value)}\n\n`);
  const wire = {
    ask: (method, params) => found.questions.ask(send, method, params),
    say: (method, params) => send({ jsonrpc: '2.0', method, params }),
    broadcast: (method) => send({ jsonrpc: '2.0', method }),
    subscribe: () => {},
  };
  if (!message.method) return found.questions.settle(message);
  if (message.id !== undefined) respond(message, wire, send);
  return undefined;
}

function http() {
  const server = createServer((request, response) => {
    if (options.requests) appendFileSync(options.requests, `${request.method} ${request.url}\n`);
    if (options.redirect) return response.writeHead(307, { location: options.redirect }).end();
    if (options.busy && existsSync(options.busy)) return response.writeHead(503, { 'retry-after': '3000' }).end();
    let body = '';
    request.on('data', (chunk) => (body += chunk)).on('end', () => {
      const message = body ? JSON.parse(body) : null;
      if ('sse' in options) return sse(request, response, message);
      const isModern = message?.params?._meta?.['io.modelcontextprotocol/protocolVersion'] !== undefined;
      if (isModern && era !== 'legacy') modern(request, response, message);
      else if (era === 'modern') response.writeHead(404).end();
      else legacy(request, response, message);
    });
  });
  server.keepAliveTimeout = 60_000;
  server.listen(Number(options.port ?? 0), '127.0.0.1', () => console.log(`listening ${server.address().port}`));
}

if ('stdio' in options) stdio();
else http();
