// Dice that can be rolled again: JUDGES_SEED repeats a run.

export const seed = Number(process.env.JUDGES_SEED ?? Math.floor(Math.random() * 2 ** 32));

/** mulberry32: small, and the same everywhere. */
export function random() {
    let state = seed >>> 0;
    return () => {
        state = (state + 0x6d2b79f5) >>> 0;
        let mixed = Math.imul(state ^ (state >>> 15), state | 1);
        mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
        return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
    };
}
