// Randomness that can be repeated: a seed, printed, gives the same run again.

/** The seed of this run: `BOWLINE_TEST_SEED`, or the time. */
export function seed(): number {
  const given = process.env["BOWLINE_TEST_SEED"];
  return given === undefined ? Date.now() % 2 ** 31 : Number(given);
}

/** mulberry32: small, and good enough to pick cases. */
export class Dice {
  #state: number;

  constructor(from: number) {
    this.#state = from >>> 0;
  }

  next(): number {
    this.#state = (this.#state + 0x6d2b79f5) >>> 0;
    let mixed = this.#state;
    mixed = Math.imul(mixed ^ (mixed >>> 15), mixed | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  }

  /** 0 … below - 1. */
  below(below: number): number {
    return Math.floor(this.next() * below);
  }

  chance(of: number): boolean {
    return this.next() < of;
  }
}
