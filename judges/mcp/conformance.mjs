// The official conformance suite, before our fixture alone and with the hub between them, in both eras on both sides.
//
// The suite leaves the scenarios that it does not score out of its verdict, the Tasks extension among them. Here every check
// counts: one that fails must be in the baseline of its run, as `scenario:check` or with its whole scenario, and what passes must
// leave the baseline.
import { spawn } from 'node:child_process';
import { readFileSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { parse } from 'yaml';
import { fixture, hub, scratch, stop } from './support.mjs';

const suite = join(import.meta.dirname, 'node_modules/@modelcontextprotocol/conformance');
const binary = process.argv[2];
const read = (path) => parse(readFileSync(path, 'utf8'));

/** Runs one set of scenarios; every check of each, by the name of its scenario. */
async function run(url, revision) {
  const out = scratch();
  const args = [join(suite, 'dist/index.js'), 'server', '--url', url, '--requirements', revision, '-o', out];
  const child = spawn(process.execPath, args, { stdio: 'ignore' });
  await new Promise((resolve) => child.on('exit', resolve));
  const told = readdirSync(out).map((name) => [
    /^server-(.*)-\d{4}-\d\d-\d\dT[\d-]+Z$/.exec(name)[1],
    JSON.parse(readFileSync(join(out, name, 'checks.json'), 'utf8')),
  ]);
  return new Map(told);
}

const bad = (check) => check.status === 'FAILURE' || check.status === 'WARNING';

/** Everything that a run must not have done, in words. */
function faults(checks, required, allowed) {
  const entries = [...checks].flatMap(([scenario, all]) => all.filter(bad).map((check) => [`${scenario}:${check.id}`, check]));
  const failed = new Map(entries);
  const names = (entry) => [entry, entry.split(':')[0]];
  const unexpected = [...failed].filter(([entry]) => !names(entry).some((name) => allowed.includes(name)));
  const seen = new Set([...failed.keys()].flatMap(names));
  return [
    ...required.filter((scenario) => !checks.has(scenario)).map((scenario) => `${scenario} did not run`),
    ...unexpected.map(([entry, check]) => `${entry} ${check.status}: ${check.errorMessage}`),
    ...allowed.filter((entry) => !seen.has(entry)).map((entry) => `${entry} passes now: take it out of the baseline`),
  ];
}

async function judge(title, url, revision, baseline) {
  const { server: scored, not_scored: others } = read(join(suite, `requirements/${revision}.yaml`));
  const more = others.filter(({ leg }) => leg === 'server').map(({ scenario }) => scenario);
  const allowed = baseline ? read(join(import.meta.dirname, baseline)).server : [];
  const checks = await run(url, revision);
  const passed = (names) => names.filter((name) => checks.get(name)?.every((check) => check.status !== 'FAILURE')).length;
  const tasks = more.filter((name) => name.startsWith('tasks-'));
  const rest = more.filter((name) => !name.startsWith('tasks-'));
  const count = (names, what) => (names.length > 0 ? `, ${passed(names)}/${names.length} ${what}` : '');
  console.log(`${title}, ${revision}: ${passed(scored)}/${scored.length} scored${count(tasks, 'Tasks')}${count(rest, 'others')}`);
  return faults(checks, [...scored, ...more], allowed).map((fault) => `${title}, ${revision}: ${fault}`);
}

/** One scenario of the suite's client half: the hub, with a client before it, speaks to the suite's server. */
async function speak(kind, scenario, revision) {
  const command = `${process.execPath} ${join(import.meta.dirname, 'through.mjs')} ${binary} ${kind}`;
  const args = [join(suite, 'dist/index.js'), 'client', '--command', command, '--scenario', scenario, '--spec-version', revision];
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'pipe'] });
  let told = '';
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (chunk) => (told += chunk));
  const [code] = await new Promise((resolve) => child.on('close', (...how) => resolve(how)));
  return code === 0 ? [] : [`the hub as a client (${kind}), ${scenario}: ${told}`];
}

// What can be asked of a client that passes on what its own clients do. The rest of the set is OAuth.
const spoken = [
  ['legacy', '2025-11-25', ['initialize', 'tools_call', 'sse-retry', 'elicitation-sep1034-client-defaults']],
  ['modern', '2026-07-28', ['tools_call', 'request-metadata', 'http-standard-headers', 'json-schema-ref-no-deref', 'sep-2322-client-request-state']],
  ['crossed', '2026-07-28', ['tools_call', 'request-metadata', 'http-custom-headers', 'http-invalid-tool-headers', 'sep-2322-client-request-state']],
];

async function speakAll() {
  const faults = [];
  for (const [kind, revision, scenarios] of spoken) {
    const failed = [];
    for (const scenario of scenarios) failed.push(...(await speak(kind, scenario, revision)));
    console.log(`the hub as a client (${kind}), ${revision}: ${scenarios.length - failed.length}/${scenarios.length}`);
    faults.push(...failed);
  }
  return faults;
}

const backend = await fixture();
const servers = {
  same: { url: backend.url },
  legacy: { url: backend.url, revision: '2025-11-25' },
  modern: { url: backend.url, revision: '2026-07-28' },
};
const front = await hub(binary, servers);
// The suite calls things by fixed names, so where all servers are one they must keep theirs.
const together = await hub(binary, { same: servers.same }, { env: { BOWLINE_HUB__PREFIX: 'never', BOWLINE_HUB__EXPOSE: 'direct' } });
const through = (server) => `${front.address}/mcp/${server}`;
const found = [
  await judge('the fixture alone', backend.url, '2025-11-25'),
  await judge('the fixture alone', backend.url, '2026-07-28'),
  await judge('through the hub', through('same'), '2025-11-25'),
  await judge('through the hub', through('same'), '2026-07-28'),
  await judge('all servers as one', `${together.address}/mcp`, '2025-11-25'),
  await judge('all servers as one', `${together.address}/mcp`, '2026-07-28'),
  await judge('older clients, modern backend', through('modern'), '2025-11-25'),
  await judge('modern clients, older backend', through('legacy'), '2026-07-28', 'crossed-legacy-backend.yml'),
  await speakAll(),
].flat();
await stop(front);
await stop(together);
await stop(backend);
found.forEach((fault) => console.error(fault));
process.exit(found.length === 0 ? 0 : 1);
