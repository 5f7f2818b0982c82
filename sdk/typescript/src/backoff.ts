// How long to wait before the next attempt.

/** Seconds before the first, second, … attempt; the last one repeats. */
export const BACKOFF_SECONDS: readonly number[] = [1, 2, 4, 8, 16, 30, 60];

/** How far a wait may be shortened or lengthened, so that a crowd does not return at once. */
const JITTER = 0.2;

/** `attempt` counts from 1; `random` is in [0, 1). */
export function backoffMs(attempt: number, random: number, seconds: readonly number[] = BACKOFF_SECONDS): number {
  const base = seconds[Math.min(attempt, seconds.length) - 1] ?? 60;
  return Math.round(base * 1000 * (1 - JITTER + 2 * JITTER * random));
}
