// Active tasks in several tabs: what one tab knows, finishes or forgets, all do. `test/outage.test.ts` has real tabs.

import { expect, test } from "vitest";
import { ACTIVE_TASKS_KEY, type ActiveTask, createChatStore } from "../src/chat.ts";
import { ActiveTasks, type Endings, type Entries, endingsCodec, entriesCodec } from "../src/chat/active.ts";
import type { Codec, SharedTools } from "../src/chat/shared.ts";
import { MemoryStore } from "../src/index.ts";
import { Dice, seed } from "./support/dice.ts";

function task(n: number): ActiveTask {
  return { taskId: `task_${n}`, operationId: `op_${n}`, toolName: "demo", lastMessageId: "0" };
}

/** A browser's storage: what one tab writes the others hear of, later; and between a tab's reading and writing others may write. */
class Origin {
  readonly store = new MemoryStore();
  nowMs = 1_000_000;
  /** Runs once, between the next reading of the key and whatever follows it. */
  meanwhile: (() => void) | null = null;
  readonly #tabs: Map<string, (text: string | null) => void>[] = [];
  #news: (() => void)[] = [];

  tab(onChange: () => void = () => {}): ActiveTasks {
    const listeners = new Map<string, (text: string | null) => void>();
    this.#tabs.push(listeners);
    const tools: SharedTools = { listen: (key, heard) => void listeners.set(key, heard) };
    const store = {
      getItem: (key: string) => {
        const found = this.store.getItem(key);
        const { meanwhile } = this;
        if (key === ACTIVE_TASKS_KEY && meanwhile !== null) {
          this.meanwhile = null;
          meanwhile();
        }
        return found;
      },
      setItem: (key: string, value: string) => {
        this.store.setItem(key, value);
        for (const others of this.#tabs) if (others !== listeners) this.#news.push(() => others.get(key)?.(value));
      },
      removeItem: (key: string) => this.store.removeItem(key),
    };
    return new ActiveTasks(store, { now: () => this.nowMs, tools, onChange });
  }

  /** All that was written is heard of, also what that leads to. */
  deliver(): void {
    for (let rounds = 0; this.#news.length > 0; rounds++) {
      if (rounds > 1_000) throw new Error("the tabs write against each other without end");
      const news = this.#news;
      this.#news = [];
      for (const hear of news) hear();
    }
  }
}

test("two tabs keep each other's tasks", () => {
  const origin = new Origin();
  const [one, two] = [origin.tab(), origin.tab()];
  one.set("sess_1", task(1));
  two.set("sess_2", task(2));
  for (const tab of [one, two, origin.tab()]) expect(Object.keys(tab.all()).sort()).toEqual(["sess_1", "sess_2"]);
  one.move("sess_1", "task_1", "ep-5");
  two.move("sess_2", "task_2", "ep-9");
  expect([one.get("sess_2")?.lastMessageId, two.get("sess_1")?.lastMessageId]).toEqual(["ep-9", "ep-5"]);
});

test("what one tab finished another does not bring back, however late it hears of it", () => {
  const origin = new Origin();
  const [one, two] = [origin.tab(), origin.tab()];
  one.set("sess_1", task(1));
  origin.deliver();
  origin.nowMs += 10;
  one.remove("sess_1", "task_1");
  origin.nowMs += 10;
  two.move("sess_1", "task_1", "ep-7");
  two.set("sess_2", task(2));
  origin.deliver();
  for (const tab of [one, two, origin.tab()]) expect(Object.keys(tab.all())).toEqual(["sess_2"]);
  // Unless somebody wants it again.
  two.set("sess_1", task(1));
  expect(one.get("sess_1")).toEqual(task(1));
});

test("a tab that is overtaken between reading and writing costs nobody's task", () => {
  const origin = new Origin();
  const [one, two] = [origin.tab(), origin.tab()];
  one.set("sess_1", task(1));
  origin.deliver();
  origin.meanwhile = () => {
    two.set("sess_2", task(2));
    two.remove("sess_1", "task_1");
  };
  one.set("sess_3", task(3));
  origin.deliver();
  for (const tab of [one, two, origin.tab()]) expect(Object.keys(tab.all()).sort()).toEqual(["sess_2", "sess_3"]);
});

test("tabs hear of each other's changes", () => {
  const origin = new Origin();
  const heard: string[] = [];
  const one = origin.tab();
  origin.tab(() => heard.push("two"));
  one.set("sess_1", task(1));
  expect(heard).toEqual([]);
  origin.deliver();
  expect(heard.length).toBeGreaterThan(0);
});

test("a storage that is cleared is clear", () => {
  const origin = new Origin();
  const one = origin.tab();
  one.set("sess_1", task(1));
  origin.store.removeItem(ACTIVE_TASKS_KEY);
  expect(one.all()).toEqual({});
});

test("several operations of one session are all known, the oldest first; the newest is the active one", () => {
  const storage = new MemoryStore();
  const store = createChatStore({ storage });
  for (let n = 1; n <= 3; n++) store.setActiveTask("sess_1", task(n));
  const reloaded = createChatStore({ storage });
  expect(reloaded.getActiveTasks("sess_1").map(({ taskId }) => taskId)).toEqual(["task_1", "task_2", "task_3"]);
  expect(reloaded.getActiveTask("sess_1")).toEqual(task(3));
  expect(reloaded.getActiveTasks()).toEqual({ sess_1: task(3) });
  reloaded.updateTaskLastMessageId("sess_1", "ep-2", "task_1");
  reloaded.updateTaskLastMessageId("sess_1", "ep-9");
  expect(store.getActiveTasks("sess_1").map(({ lastMessageId }) => lastMessageId)).toEqual(["ep-2", "0", "ep-9"]);
  store.clearActiveTask("sess_1", "task_3");
  expect(reloaded.getActiveTask("sess_1")).toEqual(task(2));
  store.clearActiveTask("sess_1");
  expect(reloaded.getActiveTasks("sess_1")).toEqual([]);
});

test("a full or forbidden storage costs nothing now", () => {
  const broken = {
    getItem: () => {
      throw new Error("forbidden");
    },
    setItem: () => {
      throw new Error("full");
    },
    removeItem: () => {},
  };
  const store = createChatStore({ storage: broken });
  store.setActiveTask("sess_1", task(1));
  store.updateTaskLastMessageId("sess_1", "ep-4");
  expect(store.getActiveTask("sess_1")).toEqual({ ...task(1), lastMessageId: "ep-4" });
});

test("a storage that stops to answer takes nothing away", () => {
  const kept = new MemoryStore();
  let isBroken = false;
  const getItem = (key: string) => {
    if (isBroken) throw new Error("gone");
    return kept.getItem(key);
  };
  const store = createChatStore({ storage: { getItem, setItem: (key, value) => kept.setItem(key, value), removeItem: () => {} } });
  store.setActiveTask("sess_1", task(1));
  isBroken = true;
  expect(store.getActiveTask("sess_1")).toEqual(task(1));
});

test("an asynchronous storage that two stores share loses nothing", async () => {
  const kept = new MemoryStore();
  const later = () => new Promise((resolve) => setTimeout(resolve, 1));
  const slow = {
    getItem: (key: string) => later().then(() => kept.getItem(key)),
    setItem: (key: string, value: string) => later().then(() => kept.setItem(key, value)),
    removeItem: async () => {},
  };
  const [one, two] = [createChatStore({ storage: slow }), createChatStore({ storage: slow })];
  one.setActiveTask("sess_1", task(1));
  await later().then(later).then(later).then(later).then(later).then(later);
  two.setActiveTask("sess_2", task(2));
  for (let n = 0; n < 200 && Object.keys(JSON.parse(kept.getItem(ACTIVE_TASKS_KEY) ?? "{}") as object).length < 2; n++) await later();
  expect(Object.keys(JSON.parse(kept.getItem(ACTIVE_TASKS_KEY) ?? "{}") as object).sort()).toEqual(["sess_1", "sess_2"]);
});

/** The same from any order and number of mergings, through text and back. */
function checkLaws<Value>(codec: Codec<Value>, make: () => Value): void {
  const { merge, print, parse } = codec;
  for (let run = 0; run < 300; run++) {
    const [a, b, c] = [make(), make(), make()];
    expect(print(merge(a, b))).toBe(print(merge(b, a)));
    expect(print(merge(merge(a, b), c))).toBe(print(merge(a, merge(b, c))));
    expect(print(merge(a, a))).toBe(print(a));
    expect(print(parse(print(a)))).toBe(print(a));
  }
}

test("merging is the same in any order, any number of times", () => {
  const start = seed();
  console.log(`seed ${start}`);
  const dice = new Dice(start);
  checkLaws<Entries>(entriesCodec(() => true, () => 5), () => {
    const entries: Record<string, Entries[string]> = {};
    for (let n = dice.below(5); n > 0; n--) {
      const id = `task_${dice.below(4)}`;
      entries[id] = { ...task(0), taskId: id, sessionId: `sess_${dice.below(3)}`, lastMessageId: `ep-${dice.below(3)}`, setAtMs: dice.below(3), touchedAtMs: dice.below(3) };
    }
    return entries;
  });
  checkLaws<Endings>(endingsCodec(() => 5), () => {
    const endings: Record<string, Endings[string]> = {};
    for (let n = dice.below(5); n > 0; n--) endings[`task_${dice.below(4)}`] = { sessionId: `sess_${dice.below(2)}`, atMs: dice.below(3) };
    return endings;
  });
});

test("whatever tabs do and whenever they hear of it, all come to know the same", () => {
  const start = seed();
  console.log(`seed ${start}`);
  for (let run = 0; run < 40; run++) {
    const dice = new Dice(start + run);
    const origin = new Origin();
    const tabs = [origin.tab(), origin.tab(), origin.tab()];
    const wanted = new Set<string>();
    let made = 0;
    const act = (tab: ActiveTasks) => {
      const session = `sess_${dice.below(3)}`;
      const known = tab.of(session);
      const some = known[dice.below(known.length)];
      if (dice.chance(0.4)) {
        tab.set(session, task(++made));
        wanted.add(`task_${made}`);
      } else if (some !== undefined && dice.chance(0.6)) {
        tab.move(session, some.taskId, `ep-${dice.below(100)}`);
      } else if (some !== undefined) {
        tab.remove(session, some.taskId);
        wanted.delete(some.taskId);
      }
    };
    for (let n = 0; n < 60; n++) {
      const tab = tabs[dice.below(3)] as ActiveTasks;
      if (dice.chance(0.2)) origin.meanwhile = () => act(tabs[dice.below(3)] as ActiveTasks);
      origin.nowMs += dice.below(3);
      act(tab);
      if (dice.chance(0.2)) origin.deliver();
    }
    origin.meanwhile = null;
    origin.deliver();
    for (const tab of [...tabs, origin.tab()]) {
      const known = ["sess_0", "sess_1", "sess_2"].flatMap((session) => tab.of(session).map(({ taskId }) => taskId));
      expect(known.sort(), `seed ${start + run}`).toEqual([...wanted].sort());
    }
  }
});
