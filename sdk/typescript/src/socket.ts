// The wire as the client sees it: the part of `WebSocket` that it needs, and how to dial one.

export interface Socket {
  onmessage: ((event: { data: unknown }) => void) | null;
  onclose: ((event: { code: number }) => void) | null;
  onerror: ((event: unknown) => void) | null;
  send(text: string): void;
  close(code?: number): void;
}

/** Opens a wire. It may throw; a failure later is a close. */
export type Dial = (url: string, protocols: string[]) => Socket;

export type WebSocketClass = new (url: string, protocols: string[]) => unknown;

export function dialWith(Class: WebSocketClass | undefined): Dial {
  return (url, protocols) => {
    const Found = Class ?? (globalThis as { WebSocket?: WebSocketClass }).WebSocket;
    if (Found === undefined) throw new Error("There is no WebSocket here; pass one as `webSocket`.");
    return new Found(url, protocols) as Socket;
  };
}

/** `http(s)` becomes `ws(s)`, a page's relative address absolute, and a bare origin gets the door's path. */
export function socketUrl(url: string): string {
  const base = (globalThis as { location?: { href: string } }).location?.href;
  const parsed = new URL(url, base);
  parsed.protocol = parsed.protocol.replace("http", "ws");
  if (parsed.pathname === "/") parsed.pathname = "/ws";
  return parsed.href;
}

/** What a subprotocol may be made of (RFC 9110, token). */
const TOKEN = /^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/;

/** A browser cannot set headers, so the credential travels as a subprotocol. One that does not fit is sent in band. */
export function protocolsFor(token: string | null): string[] {
  return token !== null && TOKEN.test(token) ? ["bowline.v1", `bearer.${token}`] : ["bowline.v1"];
}
