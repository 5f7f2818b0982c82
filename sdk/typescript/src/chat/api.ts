// Requests to a server's `/api/chat`: credentials, resume tokens, and answers as values.

import { BowlineError, type RecoveryAction, refusal } from "../failure.ts";
import { isObject } from "../frame.ts";
import type { ResumeTokens } from "./tokens.ts";

export interface ApiOptions {
  readonly baseUrl?: string;
  readonly token?: string | (() => string | null | Promise<string | null>);
  readonly fetch?: typeof fetch;
}

/** What a server, or something before it, said instead of an answer. */
export interface Refused {
  readonly status: number;
  /** The server's own; `HTTP_<status>` from something that is no Bowline. */
  readonly code: string;
  readonly message: string;
  readonly action: RecoveryAction;
  readonly retryAfterMs: number | null;
}

/** An answer as it came: the members that the server's types name, before anything has looked at what they hold. */
export type Received<Answer> = { readonly [Member in keyof Answer]?: unknown };

export interface Request {
  readonly method: "GET" | "POST" | "DELETE";
  readonly path: string;
  /** Whose resume token is shown. */
  readonly sessionId: string | null;
  readonly body?: unknown;
  readonly signal?: AbortSignal;
}

/** Tokens that are shown for one request before its refusal is believed. */
const TOKENS_TRIED_MAX = 3;

const RESUME_TOKEN = "bowline-resume-token";

export class Api {
  readonly #options: ApiOptions;
  readonly #tokens: ResumeTokens;

  constructor(options: ApiOptions, tokens: ResumeTokens) {
    this.#options = options;
    this.#tokens = tokens;
  }

  async json<Answer>({ sessionId, ...rest }: Request): Promise<Received<Answer>> {
    const response = await this.send({ sessionId, ...rest });
    if (!response.ok) {
      const { code, message, action, retryAfterMs } = await refusedBy(response);
      throw new BowlineError({ ...refusal(code, message || `HTTP ${response.status}`, action), ...(retryAfterMs === null ? {} : { retryAfterMs }) });
    }
    const value: unknown = response.status === 204 ? {} : await response.json();
    return (isObject(value) ? value : {}) as Received<Answer>;
  }

  /** A session that is not ours is answered as one that is not there, so each token that may prove it is tried before that is believed. */
  async send({ method, path, sessionId, body, signal }: Request): Promise<Response> {
    const tokens = this.#tokens;
    const tried: string[] = [];
    for (;;) {
      const next = async () => (await tokens.candidates(sessionId)).find((token) => !tried.includes(token)) ?? null;
      const shown = await next();
      const sentAtMs = Date.now();
      const response = await this.#fetch(method, path, body, shown, signal);
      if (sessionId === null) return response;
      const renewed = response.headers.get(RESUME_TOKEN);
      if (renewed !== null) tokens.keep(sessionId, renewed);
      else if (response.ok && shown !== null) tokens.keep(sessionId, shown, sentAtMs);
      if (shown !== null) tried.push(shown);
      if (response.status !== 404 || tried.length >= TOKENS_TRIED_MAX || (await next()) === null) return response;
      await response.body?.cancel();
    }
  }

  async #fetch(method: string, path: string, body: unknown, resumeToken: string | null, signal: AbortSignal | undefined): Promise<Response> {
    const { baseUrl = "", token: source, fetch: given = globalThis.fetch } = this.#options;
    const token = (typeof source === "function" ? await source() : source) ?? null;
    return given(baseUrl.replace(/\/$/, "") + path, {
      method,
      cache: "no-store",
      headers: {
        ...(body === undefined ? {} : { "content-type": "application/json" }),
        ...(token === null ? {} : { authorization: `Bearer ${token}` }),
        ...(resumeToken === null ? {} : { [RESUME_TOKEN]: resumeToken }),
      },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      ...(signal === undefined ? {} : { signal }),
    });
  }
}

export async function refusedBy(response: Response): Promise<Refused> {
  const body: unknown = await response.json().catch(() => null);
  const text = (name: string) => (isObject(body) && typeof body[name] === "string" ? (body[name] as string) : "");
  const advised = isObject(body) && typeof body["retry_after_ms"] === "number" ? body["retry_after_ms"] : Number(response.headers.get("retry-after") ?? NaN) * 1000;
  return {
    status: response.status,
    code: text("code") || `HTTP_${response.status}`,
    message: text("message"),
    action: (text("recovery_action") || "none") as RecoveryAction,
    retryAfterMs: Number.isFinite(advised) ? Math.max(0, advised) : null,
  };
}
