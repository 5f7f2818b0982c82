// An MCP server to try the hub with: both eras over HTTP and over stdio. Needs nothing but Node.js.
// It writes down each execution before it answers, so that a test can count what really ran.
import { createServer } from 'node:http';
import { appendFileSync, closeSync, existsSync, readFileSync, writeFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { randomUUID } from 'node:crypto';
import { spawn } from 'node:child_process';

const options = Object.fromEntries(process.argv.slice(2).map((word) => word.replace(/^--/, '').split('=')));
const era = options.era ?? 'legacy';
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
// What nobody can take, and where it says whom it answers: first, last, nowhere, or too deep inside.
const wild = ['unversioned', 'noise', 'latin', 'huge', 'huge_last', 'huge_nameless', 'deep', 'broken', 'loud', 'chatter', 'ask_huge'];
const huge = () => 'x'.repeat(17 << 20);
// How many streams are refused next.
let refusing = 0;
const tools = ['echo', 'count', 'ask', 'sample', 'grow', 'garbage', 'progress', 'odd'];
if (options.extra) tools.push(options.extra);
if (options.tasks) tools.push('job');
if (options.regional) tools.push('regional', 'unsound');
if (options.wild) tools.push('exit', 'hush', 'twice', ...wild);
if ('pid' in options) tools.push('pid', 'jam');
let hushed;
if ('chatty' in options) tools.push('log', 'mutter');
if ('sse' in options) tools.push('cut');
// Half of a character, as a program writes it that cuts a text where it must not.
const half = '\ud83d';
if ('half' in options) tools.push('half');
// A number that JavaScript itself cannot hold.
const exactly = (text) => ('exact' in options ? text.replaceAll('"@big@"', '12345678901234567890123') : text);
if (options.child) spawn('sleep', ['1000'], { stdio: options.child === 'holds' ? 'inherit' : 'ignore' });
if (options.stderr) console.error(options.stderr);
// A program that can run only once, as one with a database of its own.
if (options.lock && !isFirst(options.lock)) process.exit(3);

// Arguments that are to be repeated in headers, under a name that a test may change; those of `unsound` cannot be.
const header = () => (options.header && existsSync(options.header) ? readFileSync(options.header, 'utf8').trim() : 'Region');
const annotated = {
  regional: { region: { type: 'string', get 'x-mcp-header'() { return header(); } } },
  unsound: { region: { type: 'number', 'x-mcp-header': 'Region' } },
};

// What it says of tools that take long, in the revisions that have a word for it.
const long = (name) => ['optional', 'required'].find((support) => options[support]?.split(',').includes(name));

const describe = (name) => ({
  name,
  ...(long(name) && { execution: { taskSupport: long(name) } }),
  description: `the tool ${name}`,
  inputSchema: { type: 'object', ...(annotated[name] && { properties: annotated[name] }) },
  annotations: { readOnlyHint: name === 'echo' || 'readonly' in options, 'x-vendor': 1.5, ...('exact' in options && { big: '@big@' }) },
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

// Whether something happens for the first time, of which a file is the sign.
function isFirst(file) {
  if (!file || existsSync(file)) return false;
  writeFileSync(file, '');
  return true;
}

// Waits for a file, if there is to be one: that is how a test says when.
const exists = async (file) => {
  while (file && !existsSync(file)) await sleep(5);
};

const text = (value) => ({ content: [{ type: 'text', text: String(value) }] });

// What a tool does. `wire.ask` asks the client something, `wire.say` tells it something.
async function run(name, args, meta, wire) {
  switch (name) {
    case 'echo':
      return text(args.text ?? '');
    case 'pid':
      return text(process.pid);
    case 'jam':
      // Reads nothing any more, and then ends.
      for (const until = Date.now() + args.ms; Date.now() < until; );
      return process.exit(9);
    case 'count':
      if (options.count) appendFileSync(options.count, `${args.id}\n`);
      await sleep(args.ms ?? 0);
      await exists(args.until);
      return text(`done ${args.id}`);
    case 'ask': {
      await sleep(args.ms ?? 0);
      if (args.began) writeFileSync(args.began, '');
      await exists(args.when);
      const asked = await wire.ask('elicitation/create', {
        mode: args.mode ?? 'form',
        message: args.question ?? 'your name?',
        requestedSchema: { type: 'object', properties: { name: { type: 'string' } } },
        ...(args.related && { _meta: { progressToken: meta?.progressToken } }),
      });
      return text(`${asked.action} ${asked.content?.name ?? ''}`.trim());
    }
    case 'waver':
      // Asks, and takes that back when its test says so, and is over when its test says so.
      wire.ask('elicitation/create', { message: 'or not?', requestedSchema: { type: 'object', properties: {} } }).catch(() => {});
      while (!existsSync(args.back)) await sleep(5);
      wire.withdraw();
      while (!existsSync(args.over)) await sleep(5);
      return text('wavered');
    case 'forget':
      // Of all sessions but the oldest nothing is known any more.
      [...sessions].slice(1).forEach(([id, other]) => sessions.delete(id) && other.stream?.end());
      return text('forgotten');
    case 'deploy':
      // As a new process behind the same address: other tools, of which nobody is told, and the streams are cut.
      tools.push(args.name);
      refusing = args.refusing ?? 0;
      setImmediate(wire.cut);
      return text('deployed');
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
        await (step === args.stop ? new Promise(() => {}) : sleep(args.ms ?? 10));
      }
      return text('progressed');
    case 'log': {
      const say = () => (args.all ? wire.broadcast : wire.say)(args.method ?? 'notifications/message', { level: args.level, logger: 'fixture', data: args.data ?? args.text });
      // Later means after the answer.
      if (args.later) setTimeout(say, Number(args.later));
      else say();
      return text('logged');
    }
    case 'half':
      wire.say('notifications/message', { level: 'error', data: half });
      wire.broadcast('notifications/halved', { data: half });
      return text(`${half} ${(await wire.ask('elicitation/create', { mode: 'form', message: half, requestedSchema: { type: 'object' } })).action}`);
    case 'mutter':
      console.error(args.text);
      return text('muttered');
    case 'regional':
      return text(`in ${args.region}`);
    case 'cut':
      return wire.cut();
    case 'exit':
      return process.exit(args.code);
    case 'hush':
      // Says no more, and does not leave either.
      hushed = setInterval(() => {}, 1000);
      process.on('SIGTERM', () => {});
      closeSync(1);
      return new Promise(() => {});
    case 'twice':
      return text('once');
    case 'huge':
    case 'huge_last':
    case 'huge_nameless':
      return text(huge());
    case 'loud':
      wire.say('notifications/message', { level: 'info', data: huge() });
      return text('said');
    case 'ask_huge':
      return wire.ask('elicitation/create', { message: huge() }).then(() => text('answered'), () => text('refused'));
    case 'chatter':
    case 'unversioned':
    case 'noise':
    case 'broken':
      return text('said');
    case 'latin':
      return text('caf\u00e9');
    case 'forge':
      return args.result;
    case 'deep':
      return { content: [], deep: JSON.parse('['.repeat(200) + ']'.repeat(200)) };
    case 'odd':
      return { content: [{ type: 'hologram', depth: 3 }], vendor: { exact: 1.5 }, isError: false };
    default:
      throw { code: -32602, message: `no tool ${name}` };
  }
}

async function answer(method, params, wire) {
  if (method === options.mute) await new Promise(() => {});
  switch (method) {
    case 'ping':
      // A server that answers calls and no checks.
      if ('deaf' in options) await new Promise(() => {});
      return {};
    case 'server/discover':
      if (era === 'legacy') throw { code: -32601, message: 'Method not found' };
      return {
        supportedVersions: era === 'both' ? ['2026-07-28', '2025-11-25'] : ['2026-07-28'],
        capabilities: { tools: { listChanged: true }, resources: { subscribe: true } },
        _meta: { 'io.modelcontextprotocol/serverInfo': { name: 'fixture', version: '1' } },
      };
    case 'tools/list':
      // For as long as a test likes, there is no list: no answer, an error, or an answer without one.
      if (options.listless && existsSync(options.listless)) {
        if (readFileSync(options.listless, 'utf8') === 'wait') await new Promise(() => {});
        if (readFileSync(options.listless, 'utf8') === 'refuse') throw { code: -32603, message: 'no list today' };
        return { nothing: 'here' };
      }
      if ('endless' in options) return { tools: [{ name: 'large', description: 'x'.repeat(4 << 20) }], nextCursor: 'on' };
      return { tools: tools.map(describe) };
    case 'resources/list':
      return { resources: [{ uri: 'test://one', name: 'one' }] };
    case 'resources/templates/list':
      return { resourceTemplates: [] };
    case 'resources/read':
      return { contents: [{ uri: params.uri, text: 'contents', 'x-new': true, ...('exact' in options && { big: '@big@' }) }] };
    case 'resources/subscribe':
      if (options.subscribed) appendFileSync(options.subscribed, `${params.uri}${'pid' in options ? ` ${process.pid}` : ''}\n`);
      wire.subscribe(params.uri);
      return {};
    case 'resources/unsubscribe':
      if (options.count) appendFileSync(options.count, `unsubscribed ${params.uri}\n`);
      return {};
    case 'prompts/list':
      return { prompts: [{ name: 'greet' }] };
    case 'prompts/get':
      return { messages: [{ role: 'user', content: { type: 'text', text: 'hello' } }] };
    case 'logging/setLevel':
      if (options.count) appendFileSync(options.count, `level ${params.level}\n`);
      return {};
    case 'tasks/get':
      if (options.polls) appendFileSync(options.polls, 'polled\n');
      if (isFirst(options.deafpoll)) await new Promise(() => {});
      return taskState(params.taskId);
    case 'tasks/update':
      if (isFirst(options.badupdate)) throw { code: -32603, message: 'not just now' };
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

function initialize(params) {
  if ('strict' in options && params.capabilities.unheard) throw { code: -32602, message: 'unheard of' };
  if (options.clients) appendFileSync(options.clients, `${JSON.stringify(params.capabilities)}\n`);
  return initialized(params);
}

const initialized = (params) => ({
  protocolVersion: params.protocolVersion,
  capabilities: {
    tools: { listChanged: true }, resources: { subscribe: true }, prompts: {}, logging: {}, ...('half' in options && { experimental: { half } }),
  },
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
  last() {
    return { requestId: `q${this.next - 1}` };
  }
  settle(message) {
    const waiting = this.waiting.get(message.id);
    this.waiting.delete(message.id);
    if (message.error) waiting?.reject({ code: -32000, message: `refused: ${message.error.message}` });
    else waiting?.resolve(message.result);
  }
}

// A call that its client has taken back is written down as what ran is.
function notified(message) {
  if (message.method === 'notifications/cancelled' && options.count) appendFileSync(options.count, 'cancelled\n');
}

async function respond(message, wire, send) {
  // Every process but the first takes its time to begin.
  if (message.method === 'initialize' && options.late && !isFirst(options.late)) await sleep(1500);
  try {
    const result = message.method === 'initialize' ? initialize(message.params) : await answer(message.method, message.params ?? {}, wire);
    if (message.params?.name === 'garbage') return send({ jsonrpc: '2.0', id: 'not-yours', result: {} });
    if (message.params?.name === 'unversioned') return send({ id: message.id, result });
    if (message.params?.name === 'noise') return wire.noise?.();
    if (message.params?.name === 'huge_last') return send({ result, id: message.id, jsonrpc: '2.0' });
    if (message.params?.name === 'huge_nameless') return send({ result, jsonrpc: '2.0' });
    send({ jsonrpc: '2.0', id: message.id, result });
    if (message.params?.name === 'twice') send({ jsonrpc: '2.0', id: message.id, result: text('again') });
  } catch (error) {
    if (message.params?.name === 'garbage') return send({ jsonrpc: '2.0', id: 'not-yours', result: {} });
    send({ jsonrpc: '2.0', id: message.id, error: { code: error.code ?? -32603, message: error.message ?? 'broken' } });
  }
}

// A text as a program of another encoding writes it: `é` is one byte, which is no UTF-8.
const encoded = (text) => (text.includes('caf\u00e9') ? Buffer.from(text, 'latin1') : text);

function stdio() {
  const questions = new Questions();
  const write = (line) => process.stdout.write(encoded(`${line}\n`));
  const send = (message) => write(JSON.stringify(message));
  // A line that is not JSON, and lines of the program's own, as loggers write them.
  const mumble = ({ id, params }) => {
    if (params?.name === 'chatter') [`request ${id}`, `{ id: ${id} }`, `{"level":30,"id":${id}}`, `[${id}`].forEach(write);
    if (params?.name === 'broken') write(`{"jsonrpc":"2.0","id":${id},"result":{"content":[oops`);
    return params?.name === 'broken';
  };
  const wire = {
    ask: (method, params) => questions.ask(send, method, params),
    say: (method, params) => send({ jsonrpc: '2.0', method, params }),
    withdraw: () => send({ jsonrpc: '2.0', method: 'notifications/cancelled', params: questions.last() }),
    broadcast: (method, params) => {
      if (era === 'legacy') send({ jsonrpc: '2.0', method, params });
      subscriptions.forEach((id) => tell(id, method, params));
    },
    subscribe: (uri) => setTimeout(() => send({ jsonrpc: '2.0', method: 'notifications/resources/updated', params: { uri } }), 50),
  };
  // Subscriptions of the modern era, by the ids of the requests that asked for them.
  const subscriptions = new Set();
  const tell = (id, method, params) =>
    send({ jsonrpc: '2.0', method, params: { ...params, _meta: { 'io.modelcontextprotocol/subscriptionId': id } } });
  const listen = ({ id, params: { notifications } }) => {
    subscriptions.add(id);
    tell(id, 'notifications/subscriptions/acknowledged', { notifications });
    (notifications.resourceSubscriptions ?? []).forEach((uri) => tell(id, 'notifications/resources/updated', { uri }));
  };
  createInterface({ input: process.stdin }).on('line', (line) => {
    const message = JSON.parse(line);
    if (era !== 'legacy' && message.method === 'subscriptions/listen') listen(message);
    else if (message.method && message.id !== undefined) mumble(message) || respond(message, wire, send);
    else if (message.method === 'notifications/cancelled' && subscriptions.delete(message.params.requestId)) return;
    else if (!message.method) questions.settle(message);
    else notified(message);
  }).on('close', () => hushed || process.exit(0));
}

const sessions = new Map();

function legacy(request, response, message) {
  const id = request.headers['mcp-session-id'];
  if (message?.method === 'initialize' && 'alone' in options && sessions.size > 0) {
    // One session is enough for it, and it says too much about that.
    response.writeHead(200, { 'content-type': 'application/json' });
    const error = { code: -32000, message: `no room for ${request.headers.authorization}` };
    return response.end(JSON.stringify({ jsonrpc: '2.0', id: message.id, error }));
  }
  if (message?.method === 'initialize') {
    // A server without sessions has one for all, and a name for none.
    const made = 'sessionless' in options ? undefined : randomUUID();
    if (!sessions.has(made)) sessions.set(made, { questions: new Questions(), stream: null });
    response.writeHead(200, { 'content-type': 'application/json', ...(made && { 'mcp-session-id': made }) });
    return response.end(JSON.stringify({ jsonrpc: '2.0', id: message.id, result: initialize(message.params) }));
  }
  const session = sessions.get(id);
  if (!session && 'correlated' in options && message?.id !== undefined) {
    response.writeHead(404, { 'content-type': 'application/json' });
    return response.end(JSON.stringify({ jsonrpc: '2.0', id: message.id, error: { code: -32001, message: 'Session not found' } }));
  }
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
    if (options.count) appendFileSync(options.count, 'session ended\n');
    sessions.delete(id);
    return response.writeHead(200).end();
  }
  if (!message.method) {
    session.questions.settle(message);
    return response.writeHead(202).end();
  }
  if (message.id === undefined) {
    notified(message);
    return response.writeHead(202).end();
  }
  response.writeHead(200, { 'content-type': 'text/event-stream' });
  const event = (stream, value) => stream?.write(encoded(`data: ${exactly(JSON.stringify(value))}\n\n`));
  const wire = {
    ask: (method, params) => session.questions.ask((value) => event(response, value), method, params),
    say: (method, params) => event(response, { jsonrpc: '2.0', method, params }),
    withdraw: () => event(response, { jsonrpc: '2.0', method: 'notifications/cancelled', params: session.questions.last() }),
    noise: () => response.write('event: beat\ndata: tick\n\ndata: oops\n\n'),
    cut: () => sessions.forEach((other) => other.stream?.end()),
    broadcast: (method, params) => sessions.forEach((other) => event(other.stream, { jsonrpc: '2.0', method, params })),
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
    response.end(encoded(JSON.stringify(body)));
  };
  if (message.method === 'subscriptions/listen' && refusing > 0) {
    refusing -= 1;
    return void response.writeHead(503).end();
  }
  if (message.method === 'subscriptions/listen') {
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    const meta = { 'io.modelcontextprotocol/subscriptionId': message.id };
    response.write(`data: ${JSON.stringify({ jsonrpc: '2.0', method: 'notifications/subscriptions/acknowledged', params: { _meta: meta, notifications: message.params.notifications } })}\n\n`);
    const listener = { response, meta };
    listeners.add(listener);
    const tell = (method, params) => response.write(`data: ${JSON.stringify({ jsonrpc: '2.0', method, params: { ...params, _meta: meta } })}\n\n`);
    const { resourceSubscriptions = [], taskIds = [] } = message.params.notifications;
    setTimeout(() => {
      resourceSubscriptions.forEach((uri) => tell('notifications/resources/updated', { uri }));
      taskIds.forEach((id) => tell('notifications/tasks', taskState(id)));
    }, 50);
    response.on('close', () => listeners.delete(listener));
    return;
  }
  if (message.id === undefined) return void response.writeHead(202).end();
  if (message.method.startsWith('tasks/') && request.headers['mcp-name'] !== message.params.taskId) {
    return reply(400, { jsonrpc: '2.0', id: message.id, error: { code: -32020, message: 'Header mismatch' } });
  }
  const region = message.params?.name === 'regional' ? message.params.arguments?.region : undefined;
  if (request.headers[`mcp-param-${header().toLowerCase()}`] !== region) {
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
    cut: () => listeners.forEach((listener) => listener.response.end()),
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
    response.on('close', () => {
      streams.delete(id);
      if (options.count) appendFileSync(options.count, 'session ended\n');
    });
    return undefined;
  }
  const found = streams.get(new URL(request.url, 'http://x').searchParams.get('session'));
  if (request.method !== 'POST' || !found) return response.writeHead(404).end();
  // One message is too much for it, which says nothing of the session.
  if (message.params?.arguments?.hang) return void (options.count && appendFileSync(options.count, 'hung\n'));
  if (message.params?.arguments?.status) {
    const { status, later } = message.params.arguments;
    return response.writeHead(status, later ? { 'retry-after': later } : {}).end();
  }
  response.writeHead(202).end();
  const send = (value) => found.response.write(encoded(`event: message\ndata: ${JSON.stringify(value)}\n\n`));
  const wire = {
    ask: (method, params) => found.questions.ask(send, method, params),
    say: (method, params) => send({ jsonrpc: '2.0', method, params }),
    broadcast: (method, params) => send({ jsonrpc: '2.0', method, params }),
    subscribe: (uri) => setTimeout(() => send({ jsonrpc: '2.0', method: 'notifications/resources/updated', params: { uri } }), 50),
    cut: () => new Promise(() => found.response.destroy()),
  };
  if (!message.method) return found.questions.settle(message);
  if (message.id !== undefined) respond(message, wire, send);
  return undefined;
}

function http() {
  const server = createServer((request, response) => {
    if (options.requests) appendFileSync(options.requests, `${request.method} ${request.url}\n`);
    // It breaks on streams of its own, instead of saying that it has none.
    if ('resets' in options && request.method === 'GET') return void request.socket.destroy();
    if (options.redirect) return response.writeHead(307, { location: options.redirect }).end();
    if (options.busy && existsSync(options.busy)) return response.writeHead(503, { 'retry-after': '3000' }).end();
    // Busy with calls, once for each time that a test says so.
    const wanted = options.later && existsSync(options.later) ? readFileSync(options.later, 'utf8') : '';
    let body = '';
    request.on('data', (chunk) => (body += chunk)).on('end', () => {
      const message = body ? JSON.parse(body) : null;
      if (wanted && message?.method === 'tools/call') {
        writeFileSync(options.later, wanted.slice(1));
        return response.writeHead(503, { 'retry-after': '0' }).end();
      }
      // A server that breaks on checks and on nothing else.
      if (options.sick && message?.method === 'ping') {
        return response.writeHead(Number(options.sick), { 'content-type': 'application/json' }).end('%%%');
      }
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
