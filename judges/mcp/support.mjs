// What the judges share: a hub in a process of its own, and other programs, all of which end with the judge.
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const children = new Set();
const dirs = new Set();
process.on('exit', () => {
  children.forEach((child) => child.kill('SIGKILL'));
  dirs.forEach((dir) => rmSync(dir, { recursive: true, force: true }));
});
for (const signal of ['SIGINT', 'SIGTERM']) process.on(signal, () => process.exit(1));

/** A directory that is gone with the judge. */
export function scratch() {
  const dir = mkdtempSync(join(tmpdir(), 'bowline-judges-mcp-'));
  dirs.add(dir);
  return dir;
}

/** Starts a program and waits for what `pattern` finds in its output. */
export function start(command, args, pattern, { env = {}, output = 'stdout', cwd } = {}) {
  const child = spawn(command, args, { env: { ...process.env, ...env }, cwd, stdio: ['ignore', 'pipe', 'pipe'] });
  children.add(child);
  child.on('exit', () => children.delete(child));
  let told = '';
  const found = new Promise((resolve, reject) => {
    for (const name of ['stdout', 'stderr']) {
      child[name].on('data', (chunk) => {
        told = (told + chunk).slice(-20_000);
        const match = name === output && pattern.exec(told);
        if (match) resolve(match);
      });
    }
    child.on('error', reject);
    child.on('exit', (code, signal) => reject(new Error(`${command} left (${code ?? signal}): ${told}`)));
  });
  return found.then((match) => ({ child, match, told: () => told }));
}

/** Ends a program and waits until it is gone. */
export async function stop({ child }, signal = 'SIGTERM') {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const gone = new Promise((resolve) => child.once('exit', resolve));
  child.kill(signal);
  await gone;
}

/** The fixture of the conformance suite; its URL. */
export async function fixture(port = 0) {
  const started = await start(process.execPath, [join(import.meta.dirname, 'fixture/server.mjs'), String(port)], /http\S+/);
  return { ...started, url: started.match[0] };
}

/** A server of ours in front of `servers`, in the shape of `mcpServers`. */
export async function hub(binary, servers, { store = 'memory:', env = {}, dir = scratch() } = {}) {
  const file = join(dir, 'mcp.json');
  writeFileSync(file, JSON.stringify({ mcpServers: servers }));
  const args = ['serve', '--listen', '127.0.0.1:0', '--store', store];
  const started = await start(binary, args, /serving at (http:\/\/\S+?)\//, { env: { BOWLINE_HUB__SERVERS_FILE: file, ...env } });
  return { ...started, file, dir, address: started.match[1] };
}
