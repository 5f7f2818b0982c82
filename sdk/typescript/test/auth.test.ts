// Credentials against a real server: as a subprotocol, in the first frame, renewed in band.

import { createHmac } from "node:crypto";
import { afterAll, afterEach, beforeAll, expect, test } from "vitest";
import { closeClients, makeClient, next, nextEvent } from "./support/clients.ts";
import { Server } from "./support/server.ts";

const SECRET = "a secret of more than thirty-two bytes";

let server: Server;

beforeAll(async () => {
  server = await Server.start({ BOWLINE_AUTH__MODE: "jwt", BOWLINE_AUTH__JWT_SECRET: SECRET });
});

afterEach(closeClients);

afterAll(() => server.stop());

function jwt(sub: string, livesSeconds: number): string {
  const part = (value: unknown) => Buffer.from(JSON.stringify(value)).toString("base64url");
  const body = `${part({ alg: "HS256", typ: "JWT" })}.${part({ sub, exp: Math.floor(Date.now() / 1000) + livesSeconds })}`;
  return `${body}.${createHmac("sha256", SECRET).update(body).digest("base64url")}`;
}

test("a token opens the door, and an expiring one is renewed over the same connection", async () => {
  const lives = [61, 3_600];
  let dials = 0;
  const client = makeClient({ url: server.url, token: () => jwt("alice", lives[Math.min(dials++, 1)] ?? 0) });
  const renewed = next(client, "notice", ({ metadata }) => metadata?.["action"] === "authenticated");
  const states: string[] = [];
  client.on("connection", ({ state }) => states.push(state));
  await client.connect();
  const { metadata } = await renewed;
  expect(metadata?.["principal"]).toBe("alice");
  expect(Number(metadata?.["expires_at"])).toBeGreaterThan(Date.now() / 1000 + 3_000);
  expect(states).not.toContain("connection_lost");
  const answered = nextEvent(client, "agent.final_answer");
  await client.message("/echo still here");
  await answered;
});

test("a token that does not fit into a header of a browser is sent as the first frame", async () => {
  let asked = 0;
  // The first one cannot be a subprotocol, so nothing is offered and the server waits for the first frame.
  const client = makeClient({ url: server.url, token: () => (asked++ === 0 ? "not a token, with blanks" : jwt("bob", 600)) });
  await client.connect();
  expect(asked).toBe(2);
});

test("a wrong token is told after one more try, and does not knock for ever", async () => {
  const client = makeClient({ url: server.url, token: "wrong" });
  await expect(client.connect()).rejects.toMatchObject({ code: "UNAUTHORIZED", action: "authenticate" });
  expect(client.connection.state).toBe("disconnected");
});

test("no token where one is wanted is told", async () => {
  await expect(makeClient({ url: server.url }).connect()).rejects.toMatchObject({ code: "UNAUTHORIZED" });
});

test("another person's session is not there", async () => {
  const alice = makeClient({ url: server.url, token: jwt("alice", 600) });
  const { id } = await alice.connect();
  const mallory = makeClient({ url: server.url, token: jwt("mallory", 600) });
  await expect(mallory.observe(id)).rejects.toMatchObject({ code: "SESSION_NOT_FOUND" });
});
