// Names that are unique.

/** `prefix` and 128 random bits. Not `crypto.randomUUID`, which pages without TLS do not have. */
export function randomId(prefix: string): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return prefix + Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
