// One step of the link in the making: the link as it becomes, and the effects so far.

import type { ClientFrame } from "../frame.ts";
import type { Effect, Link, Moment, TimerName, Told } from "./state.ts";

export class Turn {
  link: Link;
  readonly effects: Effect[] = [];
  readonly moment: Moment;

  constructor(link: Link, moment: Moment) {
    this.link = link;
    this.moment = moment;
  }

  set(change: Partial<Link>): void {
    this.link = { ...this.link, ...change };
  }

  do(effect: Effect): void {
    this.effects.push(effect);
  }

  send(frame: ClientFrame): void {
    this.do({ do: "send", frame });
  }

  tell(told: Told): void {
    this.do({ do: "tell", told });
  }

  timer(name: TimerName, inMs: number): void {
    this.do({ do: "timer", name, inMs });
  }

  stopTimers(...names: TimerName[]): void {
    this.do({ do: "stop_timers", names });
  }
}
