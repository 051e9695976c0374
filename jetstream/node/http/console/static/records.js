// Records of a stream: a range of them, or new ones as they come.

import { Elsewhere, NoAnswer, cluster, consoleOf, expected, json, overNetwork, request } from "./api.js";
import { button, copyButton, facts, field, h, plainTable, show } from "./dom.js";
import { bytes, count, moment, query, v1 } from "./format.js";
import { KEPT_CHARS, Records, read } from "./reading.js";
import { recordsLink, streamLink } from "./streams.js";
import { VirtualTable } from "./table.js";
import { bytesOf, hexLines, natsPub, prettyJson, preview, pythonPublish } from "./values.js";

const FIELDS = ["from", "to", "subject", "key", "limit"];
const FIRST = { from: "-100", limit: "1000" };
const AGAIN_MS = 1_000;
const SHOWN_CHARS = 256 * 1024; // of one value, until all is asked for
const FORMATS = { arrow: "arrows", csv: "csv", ndjson: "ndjson" };
const NAMES_MAX = 200; // proposed while a name is typed

/** Shows records; the address has the question, so that it can be kept and sent. */
export function recordsView({ word: stream, values, worked, ways }) {
  const inputs = {
    stream: h("input", { value: stream, list: "stream-names", spellcheck: "false", autocomplete: "off" }),
    from: h("input", { placeholder: "earliest, 42, -100, -1h, txid:7" }),
    to: h("input", { placeholder: "latest" }),
    subject: h("input", { placeholder: "orders.*" }),
    key: h("input", {}),
    limit: h("input", { inputmode: "numeric" }),
  };
  const names = h("datalist", { id: "stream-names" });
  const tail = button("Tail", () => ask({ follow: "true" }), { "aria-pressed": "false" });
  const stop = button("Stop", () => halt("Stopped."), { disabled: true });
  const more = button("Next", () => readOn(), { disabled: true });
  const format = h("select", {}, Object.keys(FORMATS).map((name) => h("option", { value: name }, name)));
  const said = h("p", { class: "quiet", role: "status" });
  const counted = h("p", { class: "quiet", id: "counted" });
  const detail = h("div");
  const table = new VirtualTable("Records", [
    { head: "Offset", cell: (row) => button(count(row.offset), () => open(row), { class: "plain" }), width: "6.5rem" },
    { head: "Time (UTC)", cell: (row) => moment(row.timestamp), class: "mono medium", width: "15rem" },
    { head: "Subject", cell: (row) => row.subject, class: "mono", width: "20%" },
    { head: "Key", cell: (row) => preview(row, "key"), class: "mono medium", width: "8rem" },
    { head: "Value", cell: (row) => preview(row, "value"), class: "mono" },
  ], { key: (row) => row.offset, open });
  let records = new Records();
  let abort = null;
  let frame = null;
  let next = null;

  function open(record) {
    show(detail, recordPanel(stream, record, said));
    detail.firstChild.focus({ preventScroll: true });
    detail.scrollIntoView({ block: "nearest" });
  }

  /** Puts the question of the form into the address, which reads. */
  function ask({ follow = null } = {}) {
    const given = Object.fromEntries(FIELDS.map((name) => [name, inputs[name].value.trim()]));
    const hash = recordsLink(inputs.stream.value.trim(), query({ ...given, follow }));
    if (hash === location.hash) changed(new URLSearchParams(hash.split("?")[1]));
    else location.hash = hash;
  }

  function changed(asked) {
    halt("");
    for (const name of FIELDS) inputs[name].value = asked.get(name) ?? (asked.size ? "" : FIRST[name] ?? "");
    const follow = asked.get("follow") === "true";
    tail.setAttribute("aria-pressed", String(follow));
    if (!stream) {
      said.textContent = "Name a stream.";
      ways([["jetstream", "stream", "ls"]], [v1("streams")]);
      return;
    }
    const wanted = Object.fromEntries(FIELDS.map((name) => [name, inputs[name].value || null]));
    if (follow) wanted.limit = null;
    const flags = FIELDS.flatMap((name) => (wanted[name] === null ? [] : [`--${name}`, wanted[name]]));
    ways([["jetstream", "read", stream, ...flags, ...(follow ? ["--follow"] : [])]],
      [recordsPath({ ...wanted, follow: follow || null })]);
    records = new Records();
    show(detail);
    if (follow) followOn(wanted);
    else readPart(wanted);
  }

  function recordsPath(wanted) {
    return v1("streams", stream, "records") + query(wanted);
  }

  function halt(text) {
    abort?.abort();
    abort = null;
    stop.disabled = more.disabled = true;
    tail.setAttribute("aria-pressed", "false");
    said.textContent = text;
  }

  /** Draws with the next frame, however many records come until then. */
  function soon() {
    frame ??= requestAnimationFrame(() => {
      frame = null;
      records.trim();
      table.set([...records.list], { follow: tail.getAttribute("aria-pressed") === "true" });
      const kept = records.list.length === records.total ? "" : `, the last ${count(records.list.length)} kept`;
      counted.textContent = `${count(records.total)} records read${kept}`;
    });
  }

  async function readPart(wanted) {
    begin("Reading…");
    const mine = abort;
    let incarnation = null;
    try {
      await read(recordsPath(wanted), (head) => ({ incarnation, next } = head), (record, chars) => {
        if (mine.signal.aborted) return false;
        records.add(record, chars);
        soon();
        return !records.isFull;
      }, mine.signal);
      if (mine.signal.aborted) return;
      halt(records.total === 0 ? "No such records." : "");
      if (records.isFull) {
        said.textContent = `The page holds no more: ${count(records.list.length)} records, or ${bytes(KEPT_CHARS)}.`;
      }
      // Of a long answer the node does not say in its head where it will end.
      const isCut = next === null && String(records.total) === wanted.limit;
      if (records.isFull || isCut) next = { ...wanted, from: records.list.at(-1).offset + 1, incarnation };
      more.disabled = next === null;
      worked();
    } catch (error) {
      if (!mine.signal.aborted) await refused(error);
    }
    soon();
  }

  function readOn() {
    records = new Records();
    readPart(next);
  }

  /** Follows; where a response ends, or the node is away, goes on behind the last record that came. */
  async function followOn(wanted) {
    begin("Reading…");
    tail.setAttribute("aria-pressed", "true");
    const mine = abort;
    let place = { ...wanted, follow: true };
    const began = ({ start, incarnation }) => {
      place = { ...place, from: start, incarnation };
      said.textContent = "Following: new records are shown as they come.";
    };
    while (!mine.signal.aborted) {
      try {
        await read(recordsPath(place), began, (record, chars) => {
          if (mine.signal.aborted) return false;
          records.add(record, chars);
          place.from = record.offset + 1;
          soon();
          return true;
        }, mine.signal);
      } catch (error) {
        if (mine.signal.aborted) return;
        if (!(error instanceof NoAnswer) && error.status !== 503) {
          await refused(error);
          return;
        }
        said.textContent = "The node does not answer; the tail goes on when it does.";
      }
      await new Promise((resolve) => { setTimeout(resolve, AGAIN_MS); });
    }
  }

  function begin(text) {
    abort = new AbortController();
    stop.disabled = false;
    said.textContent = text;
    next = null;
    soon();
  }

  async function refused(error) {
    halt(error.code ? `${error.message} (${error.code})` : error.message);
    expected(error);
    if (error instanceof Elsewhere) show(said, await wayElsewhere(stream));
    else if (error.status === 404) show(said, error.message, " ", await partitionsOf(stream));
  }

  async function download() {
    const wanted = { ...Object.fromEntries(FIELDS.map((name) => [name, inputs[name].value])), format: format.value };
    await save(recordsPath(wanted), `${stream}.${FORMATS[format.value]}`, said).catch(refused);
  }

  async function propose() {
    const prefix = inputs.stream.value.trim();
    const rows = await json(v1("streams") + query({ prefix, limit: NAMES_MAX })).catch(expected);
    if (rows !== null) show(names, rows.streams.map((row) => h("option", { value: row.name })));
  }

  inputs.stream.addEventListener("input", propose);
  const form = h("form", { class: "bar", onsubmit: (event) => { event.preventDefault(); ask(); } },
    Object.entries(inputs).map(([name, input]) => field(name[0].toUpperCase() + name.slice(1), input)),
    h("button", { type: "submit" }, "Read"), tail, stop, more,
    field("Download as", format), button("Download", download), names);
  const element = h("div", { class: "filled" }, form, said, counted, table.element, detail);
  propose();
  changed(values);
  return {
    title: stream ? `Records of ${stream}` : "Records",
    element,
    changed,
    close() {
      halt("");
      cancelAnimationFrame(frame);
    },
  };
}

/** Says which node has the records, and leads there: the policy of this page keeps it from asking others. */
async function wayElsewhere(stream) {
  const info = await json(v1("streams", stream)).catch(expected);
  if (!info?.leader) return ["Another node leads it, and this page asks its own node alone."];
  const { leader } = info;
  const known = await cluster().catch(expected); // not to a ticket
  const address = known === null ? null : consoleOf(leader, known.nodes);
  const text = `Node ${leader} leads ${stream}, and this page asks its own node alone. `;
  return [text, address === null ? `Open the console of ${leader}.`
    : h("a", { href: address + location.hash }, `This view at ${leader}`),
  " (it asks for a token of its own)."];
}

/** Leads to the partitions of a stream that has some. */
async function partitionsOf(stream) {
  const info = await json(v1("streams", stream)).catch(expected);
  if (!info?.partitions) return [];
  return ["Its partitions: ", info.partitions.map((row) => [h("a", { href: recordsLink(row.name) }, row.name), " "])];
}

async function save(path, name, said) {
  said.textContent = "Downloading…";
  const response = await request(path, { accept: "*/*" });
  const blob = await overNetwork(() => response.blob());
  const address = URL.createObjectURL(blob);
  h("a", { href: address, download: name.replaceAll("/", "-") }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
  said.textContent = `${bytes(blob.size)} downloaded.`;
}

/** Returns a record with everything that is in it. */
function recordPanel(stream, record, said) {
  const value = bytesOf(record, "value");
  const key = bytesOf(record, "key");
  const texts = {
    JSON: () => (value === null || "value_base64" in record ? null : prettyJson(record.value)),
    Text: () => (value === null ? null : record.value ?? new TextDecoder().decode(value)),
    Hex: () => (value === null ? null : hexLines(value)),
  };
  const pre = h("pre", { tabindex: 0, "aria-label": "Value" });
  const rest = h("p");
  const choices = Object.entries(texts).map(([name, text]) => button(name, () => choose(name, text)));

  function choose(name, text, isWhole = false) {
    for (const choice of choices) choice.setAttribute("aria-pressed", String(choice.textContent === name));
    const shown = text() ?? (value === null ? "null: a tombstone" : "This is no JSON.");
    pre.textContent = isWhole ? shown : shown.slice(0, SHOWN_CHARS);
    show(rest, isWhole || shown.length <= SHOWN_CHARS ? null
      : button(`Show all of ${count(shown.length)} characters`, () => choose(name, text, true)));
  }

  const isJson = /^\s*[[{]/.test(record.value ?? "") && texts.JSON() !== null;
  const best = "value_base64" in record ? "Hex" : isJson ? "JSON" : "Text";
  choose(best, texts[best]);
  const path = v1("streams", stream, "records", String(record.offset), "value");
  return h("section", { class: "record", tabindex: -1, "aria-label": `Record ${record.offset}`,
    onkeydown: (event) => { if (event.key === "Escape") event.currentTarget.remove(); } },
  h("h2", {}, `Record ${count(record.offset)}`),
  facts([["Subject", record.subject], ["Time (UTC)", moment(record.timestamp)],
    ["Key", key === null ? null : record.key ?? hexLines(key)], ["Txid", record.txid],
    ["Value", value === null ? "null: a tombstone" : bytes(value.length)]]),
  record.headers ? plainTable("Headers", ["Header", "Value"],
    record.headers.map((header) => [header.key ?? "null", header.value ?? header.value_base64 ?? "null"]),
    "None.") : null,
  h("div", { class: "bar" }, choices,
    copyButton(() => record.value ?? record.value_base64 ?? "", "Copy value"),
    copyButton(() => natsPub(record), "Copy as nats pub"),
    copyButton(() => pythonPublish(record), "Copy as Python"),
    value === null ? null : button("Save value", () => save(path, `${stream}-${record.offset}`, said)
      .catch((error) => { said.textContent = error.message; expected(error); })),
    h("a", { href: streamLink(stream) }, "Its stream")),
  pre, rest);
}
