// How long to wait before the next attempt.

/** Seconds before the second, third, … attempt; the last one repeats. */
export const BACKOFF_SECONDS: readonly number[] = [1, 2, 4, 8, 16, 30, 60];

/** The first attempt waits for no more than this, so that a crowd that was cut off together does not return in one instant. */
const FIRST_MS_MAX = 250;

/** How far a later wait may be shortened or lengthened, for the same reason. */
const JITTER = 0.2;

/** `attempt` counts from 1; `random` is in [0, 1). */
export function backoffMs(attempt: number, random: number, seconds: readonly number[] = BACKOFF_SECONDS): number {
  const base = 1000 * (seconds[Math.min(Math.max(attempt - 1, 1), seconds.length) - 1] ?? 60);
  return Math.round(attempt > 1 ? base * (1 - JITTER + 2 * JITTER * random) : Math.min(base, FIRST_MS_MAX) * random);
}
