// Records as lines of JSON, as they come.

import { overNetwork, request } from "./api.js";
import { recordOf } from "./values.js";

export const KEPT_RECORDS = 10_000;
export const KEPT_CHARS = 64 * 1024 * 1024;

/** The newest records that were read, within what a page can hold. */
export class Records {
  constructor() {
    this.list = [];
    this.chars = 0;
    this.total = 0;
  }

  get isFull() {
    return this.list.length >= KEPT_RECORDS || this.chars >= KEPT_CHARS;
  }

  add(record, chars) {
    record.chars = chars;
    this.list.push(record);
    this.chars += chars;
    this.total += 1;
  }

  /** Lets the oldest go, those beyond what is kept. */
  trim() {
    let excess = Math.max(0, this.list.length - KEPT_RECORDS);
    let chars = this.list.slice(0, excess).reduce((sum, record) => sum + record.chars, 0);
    while (this.chars - chars > KEPT_CHARS && excess < this.list.length - 1) {
      chars += this.list[excess].chars;
      excess += 1;
    }
    if (excess === 0) return;
    this.list = this.list.slice(excess);
    this.chars -= chars;
  }
}

/**
 * Reads records of a path. Calls `began({start, incarnation, next})` once: the offset at which they begin, the life
 * of the stream, and the question for what is behind them (null: there is nothing, or the node does not know yet);
 * then `each(record, chars)` for every record, which returns whether to go on.
 */
export async function read(path, began, each, signal) {
  const response = await request(path, { accept: "application/x-ndjson", signal });
  const link = response.headers.get("link");
  const next = link === null ? null : new URLSearchParams(link.slice(link.indexOf("?") + 1, link.indexOf(">")));
  began({
    start: Number(response.headers.get("jetstream-start-offset")),
    incarnation: response.headers.get("jetstream-incarnation"),
    next: next === null ? null : Object.fromEntries(next),
  });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let begun = []; // of a line that may be long: chunks, to be joined once
  for (;;) {
    const { done, value } = await overNetwork(() => reader.read());
    if (done) return;
    const lines = value.split("\n");
    if (lines.length === 1) {
      begun.push(value);
      continue;
    }
    lines[0] = begun.join("") + lines[0];
    begun = [lines.pop()];
    for (const line of lines) {
      if (!each(recordOf(line), line.length)) {
        await reader.cancel();
        return;
      }
    }
  }
}
