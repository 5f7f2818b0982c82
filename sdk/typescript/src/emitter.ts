// Listeners by name. One that throws does not keep the others, or the link, from going on.

export class Emitter<Events> {
  readonly #listeners = new Map<keyof Events, Set<(value: never) => void>>();

  /** Returns what takes the listener away again. */
  on<Name extends keyof Events>(name: Name, listener: (value: Events[Name]) => void): () => void {
    const set = this.#listeners.get(name) ?? new Set();
    this.#listeners.set(name, set);
    set.add(listener);
    return () => void set.delete(listener);
  }

  emit<Name extends keyof Events>(name: Name, value: Events[Name]): void {
    for (const listener of [...(this.#listeners.get(name) ?? [])]) {
      guarded(() => (listener as (value: Events[Name]) => void)(value));
    }
  }
}

/** What it throws surfaces as an uncaught error, as it would from any event listener. */
export function guarded(listener: () => void): void {
  try {
    listener();
  } catch (error) {
    queueMicrotask(() => {
      throw error;
    });
  }
}
