// Where a client stands in a log: the epoch that the server named when we attached, and the last number we have.

export interface Position {
  /** `null` if the server never sent one: then a bare number is sent, which means the current epoch. */
  readonly epoch: string | null;
  readonly seq: number;
}

/**
 * The cursor as `content` of a frame has it.
 *
 * The epoch is that of the greeting and not of the last event: a log that went on in a new epoch still holds events of
 * the old one, and a cursor made of such an event's id would skip the rest of them.
 */
export function cursorFields(position: Position | null): Record<string, unknown> {
  if (position === null) return {};
  return position.epoch === null ? { last_seq: position.seq } : { last_event_id: `${position.epoch}-${position.seq}` };
}
