// The numbers of /metrics of the last hour: what this page has read since it was opened, and nothing else.

const HOUR_MS = 3_600_000;
const LINE = /^([a-z_]+)(?:\{(.*)\})? (\S+)$/;
const LABEL = /([a-z_]+)="((?:[^"\\]|\\.)*)"/g;

/** Of these metrics each stream's number is kept; of all others the sum. */
const BY_STREAM = new Set(["jetstream_stream_high_watermark", "jetstream_stream_bytes"]);

/** Numbers of streams that are looked at only now: the newest ones. */
const NOW_BY_STREAM = new Set([
  "jetstream_stream_online", "jetstream_stream_possible_gaps_total", "jetstream_stream_unclean_elections_total",
  "jetstream_stream_committed_records_lost_total", "jetstream_stream_corrupt_offsets",
  "jetstream_stream_repaired_offsets_total", "jetstream_stream_tier_failing", "jetstream_stream_time_ahead_seconds",
  "jetstream_stream_waiting_messages", "jetstream_stream_pending_acks",
]);

/** Returns {sums: Map(metric or `metric{labels}` → number), streams: Map(metric → Map(stream → number))}. */
export function parsed(text) {
  const sums = new Map();
  const streams = new Map();
  for (const line of text.split("\n")) {
    if (!line.startsWith("jetstream_") && !line.startsWith("process_")) continue;
    const match = LINE.exec(line);
    if (match === null) continue;
    const [, name, labels, digits] = match;
    const number = Number(digits);
    sums.set(name, (sums.get(name) ?? 0) + number);
    if (labels === undefined) continue;
    if (BY_STREAM.has(name) || NOW_BY_STREAM.has(name)) {
      const stream = labelled(labels).stream;
      if (!streams.has(name)) streams.set(name, new Map());
      streams.get(name).set(stream, number);
    } else if (!name.startsWith("jetstream_stream_")) {
      sums.set(`${name}{${labels}}`, number);
    }
  }
  return { sums, streams };
}

function labelled(text) {
  const labels = {};
  for (const [, name, value] of text.matchAll(LABEL)) {
    labels[name] = value.replace(/\\(.)/g, (_, character) => (character === "n" ? "\n" : character));
  }
  return labels;
}

/** What was read, oldest first. */
export class History {
  constructor() {
    this.points = [];
    this.latest = null;
  }

  add(text, at = Date.now()) {
    this.latest = parsed(text);
    const kept = new Map([...BY_STREAM].map((name) => [name, this.latest.streams.get(name) ?? new Map()]));
    const sums = new Map([...this.latest.sums].filter(([name]) => !name.includes("{")));
    this.points.push({ at, sums, streams: kept });
    const first = this.points.findIndex((point) => point.at >= at - HOUR_MS);
    this.points.splice(0, first);
  }

  /** Returns [time, number] of a metric, of one stream if it is named. */
  levels(metric, stream = null) {
    return this.points
      .map(({ at, sums, streams }) => [at, stream === null ? sums.get(metric) : streams.get(metric).get(stream)])
      .filter(([, number]) => number !== undefined);
  }

  /** Returns [time, growth a second]; where a count begins anew with the node there is nothing. */
  rates(metric, stream = null) {
    return slopes(this.levels(metric, stream));
  }

  /** Returns [time, growth of one metric for each of another]. */
  ratios(metric, other) {
    const below = this.rates(other);
    return this.rates(metric).map(([at, number], place) => [at, number / below[place]?.[1]])
      .filter(([, number]) => Number.isFinite(number));
  }
}

export function slopes(levels) {
  return levels.slice(1).map(([at, number], place) => {
    const [before, earlier] = levels[place];
    return [at, (number - earlier) / ((at - before) / 1000)];
  }).filter(([, number]) => number >= 0 && Number.isFinite(number));
}

export const history = new History();
