// The list of streams, and one stream.

import { ApiError, Poll, allRows, cluster, consoleOf, json } from "./api.js";
import { chart, charts } from "./charts.js";
import { facts, field, h, plainTable, show } from "./dom.js";
import { bytes, clock, count, moment, rate, v1 } from "./format.js";
import { history } from "./history.js";
import { VirtualTable } from "./table.js";

const POLL_MS = 5_000;

/** What was read last of each stream: {offset, at, rate}; outlives the view, so that rates are there at once. */
const seen = new Map();

function noted(row, at) {
  if (row.high_watermark === null) return null;
  const before = seen.get(row.name);
  const seconds = before ? (at - before.at) / 1000 : 0;
  const isSame = before && row.high_watermark >= before.offset && seconds < 600;
  const speed = isSame ? (row.high_watermark - before.offset) / seconds : null;
  seen.set(row.name, { offset: row.high_watermark, at, rate: speed });
  return speed;
}

/** What is wrong with a stream, by the list alone: 2 it has no leader, 1 it lacks replicas in sync, 0 nothing. */
export function ailment(row, isOffline) {
  if (row.leader === null || isOffline) return 2;
  return row.isr.length < row.replicas.length ? 1 : 0;
}

const WORDS = ["online", "behind", "offline"];
const MARKS = ["✓", "!", "✗"];

export function stateMark(ailing) {
  return h("span", { class: `state s${ailing}` }, `${MARKS[ailing]} ${WORDS[ailing]}`);
}

/** Returns rows that match, those that are offline first, then by `order`. */
export function arranged(rows, search, order) {
  const wanted = search.trim().toLowerCase();
  const matching = wanted === "" ? [...rows]
    : rows.filter((row) => row.name.toLowerCase().includes(wanted) || row.subject.toLowerCase().includes(wanted));
  const number = { name: () => 0, rate: (row) => row.rate ?? -1, size: (row) => row.bytes ?? -1 }[order];
  return matching.sort((one, other) => other.ailing - one.ailing || number(other) - number(one)
    || (one.name < other.name ? -1 : 1));
}

/** Shows all streams. */
export function streamsView({ values, failed, worked, ways }) {
  let rows = [];
  let nodes = [];
  let asOf = 0;
  const table = new VirtualTable("Streams", [
    { head: "Stream", cell: (row) => h("a", { href: streamLink(row.name) }, row.name) },
    { head: "State", cell: (row) => stateMark(row.ailing), width: "6.5rem" },
    { head: "Rate", cell: (row) => rate(row.rate), class: "number", width: "5.5rem" },
    { head: "Records to", cell: (row) => count(row.high_watermark), class: "number medium", width: "8rem" },
    { head: "Size", cell: (row) => bytes(row.bytes), class: "number medium", width: "6rem" },
    { head: "In sync", cell: (row) => `${row.isr.length} of ${row.replicas.length}`, class: "medium", width: "5rem" },
    { head: "Leader", cell: (row) => (row.leader === null ? "none" : nodeName(row.leader, nodes, streamLink(row.name))),
      class: "medium", width: "10rem" },
    { head: "Replicas", cell: (row) => row.replicas.join(", "), class: "wide", width: "10rem" },
    { head: "Subject", cell: (row) => row.subject, class: "wide", width: "25%" },
  ], { key: (row) => row.name, open: (row) => { location.hash = streamLink(row.name); } });
  const search = h("input", { type: "search", value: values.get("search") ?? "", oninput: draw });
  const order = h("select", { onchange: draw },
    ["name", "rate", "size"].map((name) => h("option", { value: name }, name)));
  const internal = h("input", { type: "checkbox", onchange: () => poll.again() });
  const total = h("p", { class: "quiet" }, "Reading…");

  function draw() {
    const shown = arranged(rows, search.value, order.value);
    table.set(shown);
    const offline = rows.filter((row) => row.ailing === 2).length;
    const sum = rows.reduce((whole, row) => whole + (row.bytes ?? 0), 0);
    total.textContent = `${count(shown.length)} of ${count(rows.length)} streams, ${count(offline)} offline, `
      + `${bytes(sum)} here, as of ${clock(asOf)}. – : this node does not hold the stream.`;
  }

  const poll = new Poll(async (signal) => {
    const read = await allRows(v1("streams"), "streams", internal.checked ? { internal: true } : {}, signal);
    nodes = (await cluster()).nodes;
    const at = performance.now();
    const online = history.latest?.streams.get("jetstream_stream_online");
    rows = read.map((row) => ({ ...row, rate: noted(row, at), ailing: ailment(row, online?.get(row.name) === 0) }));
    asOf = Date.now();
    draw();
    worked();
  }, POLL_MS, (error) => {
    if (error instanceof ApiError && error.status === 403) {
      total.textContent = "A ticket shows the records of its own stream: choose it under Records.";
    } else failed(error);
  }).start();
  ways([["jetstream", "stream", "ls"]], [v1("streams")]);
  const element = h("div", { class: "filled" },
    h("div", { class: "bar" }, field("Search", search), field("Order", order), field("Internal", internal)),
    total, table.element);
  return { title: "Streams", element, poll, close: () => poll.stop() };
}

export function streamLink(name) {
  return `#/streams/${encodeURIComponent(name)}`;
}

export function recordsLink(name, values = "") {
  return `#/records/${encodeURIComponent(name)}${values}`;
}

/** Shows one stream, or a partitioned one. */
export function streamView({ word: name, failed, worked, ways }) {
  const live = h("div", {}, h("p", { class: "quiet" }, "Reading…"));
  const lines = h("div");
  const drawLines = () => show(lines, charts(
    chart("Records committed", history.rates("jetstream_stream_high_watermark", name), rate),
    chart("Size on this node", history.levels("jetstream_stream_bytes", name), bytes)));
  const poll = new Poll(async (signal) => {
    const [info, { nodes }] = await Promise.all([json(v1("streams", name), signal), cluster()]);
    show(live, info.partitions ? partitionedStream(info) : oneStream(info, nodes));
    worked();
  }, POLL_MS, failed).start();
  document.addEventListener("metrics-read", drawLines);
  drawLines();
  ways([["jetstream", "stream", "info", name]], [v1("streams", name)]);
  return {
    title: name,
    element: h("div", {}, h("p", {}, h("a", { href: recordsLink(name) }, "Records of it")), live, lines),
    poll,
    close() {
      poll.stop();
      document.removeEventListener("metrics-read", drawLines);
    },
  };
}

function partitionedStream(info) {
  return [
    facts([["Partitions that share the messages", count(info.effective_partitions)],
      ["Missing", info.missing.length ? info.missing.join(", ") : null], ["Subject", info.config.subject]]),
    h("h2", {}, "Partitions"),
    plainTable("Partitions", ["Partition", "State", "Leader", "In sync", "Records to", "Size"],
      info.partitions.map((row) => [
        h("a", { href: streamLink(row.name) }, row.name), stateMark(ailment(row, false)), row.leader ?? "none",
        `${row.isr.length} of ${row.replicas.length}`, count(row.high_watermark), bytes(row.bytes)]),
      "None is there."),
    settings(info.config),
  ];
}

function oneStream(info, nodes) {
  const isOnline = info.state === "online";
  return [
    h("p", {}, stateMark(isOnline ? Number(info.isr.length < info.replicas.length) : 2), " ",
      info.reason ? `${info.reason} (${info.reason_code})` : ""),
    facts([
      ["Leader", info.leader === null ? "none" : nodeName(info.leader, nodes, streamLink(info.config.name))],
      ["Leader epoch", count(info.leader_epoch)],
      ["In sync", `${info.isr.join(", ") || "none"} of ${info.replicas.join(", ")}`],
      ["Read replicas", info.read_replicas.join(", ") || null],
      ["Being moved to", info.target?.join(", ")],
      ["Offsets", `${count(info.log_start_offset)} to ${count(info.high_watermark)}`],
      ["Not committed", count(info.log_end_offset - info.high_watermark)],
      ["Size", `${bytes(info.bytes)} in ${count(info.segments)} segments`],
      ["In the object store below", info.tier ? count(info.tier.end) : null],
      ["Upload fails", info.tier?.problem],
      ["Compacted below", info.compaction ? count(info.compaction.cleaned_end) : null],
      ["Message ids remembered", count(info.dedupe.ids)],
      ["Created", moment(info.created_at)],
      ["Incarnation", info.incarnation],
    ]),
    h("h2", {}, "Replicas"),
    plainTable("Replicas", ["Node", "In sync", "Log end", "On disk to", "Lag"],
      info.replica_states.map((row) => [nodeName(row.node, nodes, streamLink(info.config.name)),
        row.is_read_replica ? "read replica" : row.in_sync ? "✓ yes" : "✗ no",
        count(row.log_end_offset), count(row.synced_end), count(row.lag)]),
      "Nobody leads the stream, so nobody knows its replicas."),
    damage(info),
    settings(info.config),
  ];
}

/** What may be missing of a stream, or is damaged. */
export function damage(info) {
  const gaps = info.possible_gaps.map((gap) => [gap.kind, moment(gap.since), moment(gap.until), count(gap.count)]);
  const ranges = info.corrupt_ranges.map((range) => [count(range.start), count(range.end)]);
  const unclean = info.last_unclean_election;
  return h("div", {},
    h("h2", {}, "Possible gaps and damage"),
    plainTable("Possible gaps", ["Why", "Since", "Until", "Messages"], gaps, "No possible gaps."),
    plainTable("Damaged offsets", ["From", "To (exclusive)"], ranges, "No damaged offsets."),
    unclean ? h("p", { class: "warning" },
      `Unclean election of ${unclean.leader} in epoch ${unclean.leader_epoch}, ${moment(unclean.at)}: `
      + `acked records from ${unclean.from_offset ?? "an unknown offset"} on may be lost.`) : null);
}

function settings(config) {
  const rows = Object.entries(config).map(([name, value]) => [name, JSON.stringify(value)]);
  return h("details", {}, h("summary", {}, "Settings"), facts(rows));
}

/** Returns a node's name, with a link to the same view of its console where that is known. */
export function nodeName(id, nodes, hash) {
  const address = consoleOf(id, nodes);
  return address === null ? id : h("a", { href: address + hash, title: `the console of ${id}` }, id);
}
