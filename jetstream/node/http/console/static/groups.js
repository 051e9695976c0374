// Consumer groups: their members, and how far behind each partition is.

import { Poll, allRows, json } from "./api.js";
import { facts, h, plainTable, show } from "./dom.js";
import { UNKNOWN, count, moment, v1 } from "./format.js";
import { streamLink } from "./streams.js";
import { VirtualTable } from "./table.js";

const POLL_MS = 5_000;
const ASKED_MAX = 50; // streams that this node does not hold, whose leaders are asked each time

function groupLink(name) {
  return `#/groups/${encodeURIComponent(name)}`;
}

/** Shows all groups. */
export function groupsView({ failed, worked, ways }) {
  const table = new VirtualTable("Consumer groups", [
    { head: "Group", cell: (row) => h("a", { href: groupLink(row.group) }, row.group), width: "50%" },
    { head: "Members", cell: (row) => count(row.members), class: "number" },
    { head: "Generation", cell: (row) => count(row.generation), class: "number" },
    { head: "Kept in", cell: (row) => row.shard, class: "medium" },
  ], { key: (row) => row.group, open: (row) => { location.hash = groupLink(row.group); } });
  const total = h("p", { class: "quiet", role: "status" }, "Reading…");
  const poll = new Poll(async (signal) => {
    const rows = await allRows(v1("groups"), "groups", {}, signal);
    table.set(rows);
    total.textContent = rows.length === 1 ? "1 group" : `${count(rows.length)} groups`;
    worked();
  }, POLL_MS, failed).start();
  ways([["jetstream", "group", "ls"]], [v1("groups")]);
  const element = h("div", { class: "filled" }, total, table.element);
  return { title: "Groups", element, poll, close: () => poll.stop() };
}

/** Shows one group. */
export function groupView({ word: group, failed, worked, ways }) {
  const live = h("div", {}, h("p", { class: "quiet" }, "Reading…"));
  const poll = new Poll(async (signal) => {
    const info = await wholeGroup(group, signal);
    const streams = await streamsOf(info.cursors, signal);
    show(live, groupShown(info, lags(info, streams)));
    worked();
  }, POLL_MS, failed).start();
  ways([["jetstream", "group", "info", group], ["jetstream", "group", "lag", group]], [v1("groups", group)]);
  return { title: group, element: live, poll, close: () => poll.stop() };
}

/** Returns a group with all its members and cursors, which come in pages. */
async function wholeGroup(group, signal) {
  const path = v1("groups", group);
  const info = await json(path, signal);
  let rows = info.members.length + info.cursors.length;
  while (rows < info.total) {
    const page = await json(`${path}?offset=${rows}`, signal);
    const more = page.members.length + page.cursors.length;
    if (more === 0) break;
    info.members.push(...page.members);
    info.cursors.push(...page.cursors);
    rows += more;
  }
  return info;
}

/** Returns what is known of the streams that cursors are in, by name; leaders are asked where this node holds none. */
async function streamsOf(cursors, signal) {
  const found = new Map();
  for (const stream of new Set(cursors.map((cursor) => cursor.stream))) {
    for (const row of await allRows(v1("streams"), "streams", { prefix: stream }, signal)) found.set(row.name, row);
  }
  const elsewhere = cursors.map((cursor) => partitionName(cursor, found))
    .filter((name) => found.get(name)?.high_watermark === null);
  for (const name of elsewhere.slice(0, ASKED_MAX)) found.set(name, await json(v1("streams", name), signal));
  return found;
}

function partitionName({ stream, partition }, streams) {
  const name = `${stream}/${partition}`;
  return streams.has(name) ? name : stream;
}

/** Returns a row for each cursor: {name, offset, end, lag, client}; `lag` is null where it is not known. */
export function lags({ members, cursors }, streams) {
  return cursors.map((cursor) => {
    const name = partitionName(cursor, streams);
    const end = streams.get(name)?.high_watermark ?? null;
    const owner = members.find((member) => member.owned.some(
      (owned) => owned.stream === cursor.stream && owned.partitions.some(([number]) => number === cursor.partition)));
    const lag = end === null || cursor.offset > end ? null : end - cursor.offset;
    return { ...cursor, name, end, lag, client: owner?.client ?? null };
  });
}

function owned(partitions) {
  return partitions.map(({ stream, partitions: pairs }) => `${stream}: ${pairs.map(([number]) => number).join(", ")}`)
    .join("; ") || "nothing";
}

function groupShown(info, rows) {
  const known = rows.filter((row) => row.lag !== null);
  const unknown = rows.length - known.length;
  return [
    facts([["Behind, all partitions", count(known.reduce((sum, row) => sum + row.lag, 0))],
      ["Not known of", unknown ? `${count(unknown)} partitions: ${UNKNOWN}` : null],
      ["Coordinator", info.coordinator], ["Kept in", info.shard], ["Generation", count(info.generation)],
      ["Partitions are dealt out by", info.assignor]]),
    h("h2", {}, "Partitions"),
    plainTable("Partitions", ["Stream", "Reads on at", "Committed to", "Lag", "Member", "Last commit (UTC)"],
      rows.map((row) => [h("a", { href: streamLink(row.name) }, row.name), count(row.offset), count(row.end),
        count(row.lag), row.client ?? "nobody", moment(row.committed_at)]),
      "The group has committed nothing yet."),
    h("h2", {}, "Members"),
    plainTable("Members", ["Client", "Member", "Subscribes to", "Owns", "Gives up"],
      info.members.map((member) => [member.instance ? `${member.client} (${member.instance})` : member.client,
        member.member, member.streams.join(", "), owned(member.owned), owned(member.gives_up)]),
      "Nobody is a member now."),
  ];
}
