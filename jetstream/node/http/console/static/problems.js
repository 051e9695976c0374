// What is wrong, each with the runbook's section: from what the node says of itself. Nothing here touches the page.

import { bytes, count } from "./format.js";

/** The sections that are named here, by number, with their titles in docs/runbook.md. */
export const RUNBOOK = {
  "RB-01": "A stream is offline or damaged",
  "RB-03": "A stream gets no messages: NATS refuses its subject",
  "RB-04": "The disk is full",
  "RB-05": "Readers get corrupt_data",
  "RB-06": "Possible gaps grow",
  "RB-07": "The node does not start",
  "RB-10": "An unclean election",
  "RB-11": "The object store fails",
  "RB-12": "Connections are turned away, or nothing more can be opened",
  "RB-13": "A log is gone",
  "RB-15": "A stream's time is ahead of the clock, or the clock has jumped",
  "RB-16": "Readers are refused",
  "RB-19": "A node is too old for its cluster",
  "RB-21": "A voter is dead",
  "RB-22": "A stream has too few replicas in sync",
  "RB-23": "Messages are refused",
};

/** The words of docs/errors.md that have a section of their own; other problems of a stream are RB-01. */
const BY_CODE = {
  corrupt_data: "RB-05", disk_full: "RB-04", not_enough_replicas: "RB-22", out_of_resources: "RB-12",
  stream_lost: "RB-13", subscription_refused: "RB-03", tier_unavailable: "RB-11", unsupported_feature_level: "RB-19",
};

/** [metric, section, what it is, is it bad by itself], of single streams. */
const OF_STREAMS = [
  ["jetstream_stream_corrupt_offsets", "RB-05", "offsets are damaged, and refused to readers", true],
  ["jetstream_stream_committed_records_lost_total", "RB-10", "committed records were lost, or may have been", true],
  ["jetstream_stream_unclean_elections_total", "RB-10", "unclean elections", true],
  ["jetstream_stream_possible_gaps_total", "RB-06", "times in which messages may have been missed", false],
  ["jetstream_stream_tier_failing", "RB-11", "uploads to the object store fail, or wait", true],
  ["jetstream_stream_repaired_offsets_total", "RB-05", "offsets were put back from another replica", false],
];

/** As `OF_STREAMS`, of the node. */
const OF_NODE = [
  ["jetstream_blank_replicas", "RB-13", "replicas here hold nothing until they are copied", true],
  ["jetstream_scrub_failures_total", "RB-01", "segments were found to be damaged, or unreadable", true],
  ["jetstream_connections_turned_away_total", "RB-12", "connections were turned away", false],
  ['jetstream_socket_connections_total{event="unauthorized"}', "RB-16", "readers were refused", false],
];
const FREE_BYTES_MIN = 2 ** 30;
const AHEAD_SECONDS_MAX = 60;

/**
 * Returns {text, section, stream, isBad} of all that is wrong; `stream` is null where it is the node's.
 * health: the document of /healthz; numbers: of /metrics, as `parsed`; null: not read yet. rows: of the list.
 */
export function problems(health, numbers, rows) {
  const found = health.problems.map(told);
  if (health.problems_total > found.length) {
    found.push(problem(`${count(health.problems_total - found.length)} more problems, which this page is not told`,
      "RB-01", null));
  }
  if (numbers !== null) found.push(...counted(numbers));
  const named = new Set(found.filter(({ isBad }) => isBad).map(({ stream }) => stream));
  for (const row of rows) {
    if (named.has(row.name)) continue;
    if (row.leader === null) found.push(problem("nobody leads the stream", "RB-01", row.name));
    else if (row.isr.length < row.replicas.length) {
      const lacking = row.replicas.filter((node) => !row.isr.includes(node));
      found.push(problem(`not in sync: ${lacking.join(", ")}`, "RB-22", row.name));
    }
  }
  return found.sort((one, other) => Number(other.isBad) - Number(one.isBad));
}

function problem(text, section, stream, isBad = true) {
  return { text, section, stream, isBad };
}

/** A sentence of /healthz. */
function told(text) {
  const [, stream, code] = /^stream (\S+): ([a-z_]+): /.exec(text) ?? [];
  if (stream !== undefined) return problem(text, BY_CODE[code] ?? "RB-01", stream);
  if (/connection to NATS/.test(text)) return problem(text, "RB-06", null);
  if (/starting|stopping/.test(text)) return problem(text, "RB-07", null);
  if (/metadata/.test(text)) return problem(text, "RB-21", null);
  return problem(text, "RB-03", null);
}

function counted({ sums, streams }) {
  const found = [];
  for (const [metric, section, what, isBad] of OF_STREAMS) {
    for (const [stream, number] of streams.get(metric) ?? []) {
      if (number > 0) found.push(problem(`${count(number)}: ${what}`, section, stream, isBad));
    }
  }
  for (const [metric, section, what, isBad] of OF_NODE) {
    const number = sums.get(metric) ?? 0;
    if (number > 0) found.push(problem(`${count(number)}: ${what}`, section, null, isBad));
  }
  for (const [stream, ahead] of streams.get("jetstream_stream_time_ahead_seconds") ?? []) {
    if (ahead > AHEAD_SECONDS_MAX) {
      found.push(problem(`the stream's time is ${count(ahead)} s ahead of the clock`, "RB-15", stream));
    }
  }
  const free = sums.get("jetstream_disk_free_bytes");
  if (free !== undefined && free < FREE_BYTES_MIN) {
    found.push(problem(`${bytes(free)} are free on the disk`, "RB-04", null));
  }
  const voters = sums.get("jetstream_metadata_voters") ?? 0;
  const heard = sums.get("jetstream_metadata_voters_heard") ?? 0;
  if (heard < voters) found.push(problem(`${voters - heard} of ${voters} voters do not answer`, "RB-21", null));
  return found;
}
