// What a record has in it, as people look at it and as programs publish it again. Nothing here touches the page.

import { hexByte, pythonBytes, pythonText, quoted } from "./format.js";

const HEX_COLUMNS = 16;
const WORD_CHARS_MAX = 30_000; // of an argument: Linux takes 128 KiB, and a character has up to four bytes

/** Returns a record of a JSON line; its txid stays text, as numbers of 64 bits are no numbers here. */
export function recordOf(line) {
  // Within a string of JSON every quotation mark has a backslash before it, so this finds the member alone.
  return JSON.parse(line.replace(/,"txid":(-?\d+)/, ',"txid":"$1"'));
}

/** Returns the bytes of a member (`key`, `value`) of a record or header; null: it is null. */
export function bytesOf(record, name) {
  const encoded = record[`${name}_base64`];
  if (encoded !== undefined) return Uint8Array.from(atob(encoded), (character) => character.charCodeAt(0));
  const text = record[name];
  return text === null || text === undefined ? null : new TextEncoder().encode(text);
}

/** Returns a line for a list: text as it is, other bytes in hexadecimal, and no more than a list can show. */
export function preview(record, name) {
  const encoded = record[`${name}_base64`];
  if (encoded !== undefined) {
    const first = bytesOf({ [`${name}_base64`]: encoded.slice(0, 88) }, name);
    return `0x${[...first].map(hexByte).join("")}`;
  }
  const text = record[name];
  if (text === null) return "tombstone";
  return text === undefined ? "" : text.slice(0, 200);
}

/** Returns JSON with a member a line; null: the text is none. Numbers and repeated names stay as they are. */
export function prettyJson(text) {
  try {
    JSON.parse(text);
  } catch {
    return null;
  }
  let made = "";
  let depth = 0;
  let isFirst = false;
  const newLine = () => `\n${"  ".repeat(depth)}`;
  for (const [token] of text.matchAll(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g)) {
    if (token === "}" || token === "]") {
      depth -= 1;
      made += isFirst ? token : newLine() + token;
      isFirst = false;
      continue;
    }
    if (isFirst) made += newLine();
    isFirst = token === "{" || token === "[";
    if (isFirst) depth += 1;
    made += token === ":" ? ": " : token === "," ? `,${newLine()}` : token;
  }
  return made;
}

/** Returns lines of offset, bytes and characters, as hexdump has them. */
export function hexLines(octets) {
  const lines = [];
  for (let start = 0; start < octets.length; start += HEX_COLUMNS) {
    const row = [...octets.subarray(start, start + HEX_COLUMNS)];
    const hex = row.map(hexByte).join(" ").padEnd(3 * HEX_COLUMNS - 1);
    const text = row.map((byte) => (byte >= 0x20 && byte < 0x7f ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${start.toString(16).padStart(8, "0")}  ${hex}  ${text}`);
  }
  return lines.join("\n");
}

/** Headers that would be asked for anew: what they have done is in the record, or was for that moment. */
const ASKS = /^(nats-msg-id|nats-expected-.*|jetstream-.*)$/i;

function ownHeaders(record) {
  return (record.headers ?? []).filter((header) => !ASKS.test(header.key ?? ""));
}

/** Returns headers, the key and the txid among them, as messages carry them; `left`: those that are no text. */
function messageHeaders(record) {
  const headers = [];
  const left = [];
  if ("key_base64" in record) left.push("the key");
  else if ("key" in record) headers.push(["Jetstream-Key", record.key]);
  if ("txid" in record) headers.push(["Jetstream-Txid", record.txid]);
  if (record.value === null) headers.push(["Jetstream-Tombstone", "true"]);
  for (const header of ownHeaders(record)) {
    if (typeof header.value === "string" && typeof header.key === "string") headers.push([header.key, header.value]);
    else left.push(`a header ${header.key}`);
  }
  return { headers, left };
}

function base64(octets) {
  return btoa([...octets].map((byte) => String.fromCharCode(byte)).join(""));
}

/** Returns the command that publishes a record again, for bash and zsh. */
export function natsPub(record) {
  const { headers, left } = messageHeaders(record);
  const flags = headers.map(([name, value]) => `-H ${quoted(`${name}:${value}`)} `).join("");
  const command = `nats pub --no-templates ${flags}`;
  const note = left.length ? `  # without ${left.join(", ")}: no text` : "";
  if ("value_base64" in record || record.value?.includes("\0") || record.value?.length > WORD_CHARS_MAX) {
    const encoded = record.value_base64 ?? base64(bytesOf(record, "value"));
    return `printf %s ${encoded} | base64 -d | ${command}--force-stdin -- ${quoted(record.subject)}${note}`;
  }
  return `${command}-- ${quoted(record.subject)} ${record.value ? quoted(record.value) : "''"}${note}`;
}

/** Returns the call of the client library that publishes a record again. */
export function pythonPublish(record) {
  const value = bytesOf(record, "value");
  const words = [pythonText(record.subject), value === null ? "None" : pythonBytes(value)];
  const key = bytesOf(record, "key");
  if (key !== null) words.push(`key=${pythonBytes(key)}`);
  if ("txid" in record) words.push(`txid=${record.txid}`);
  const headers = new Map();
  const left = [];
  for (const header of ownHeaders(record)) {
    const isPlain = typeof header.value === "string" && typeof header.key === "string" && !headers.has(header.key);
    if (isPlain) headers.set(header.key, header.value);
    else left.push(header.key);
  }
  if (headers.size) {
    words.push(`headers={${[...headers].map((pair) => pair.map(pythonText).join(": ")).join(", ")}}`);
  }
  const note = left.length ? `  # without headers that repeat or are no text: ${pythonText(left.join(", "))}` : "";
  return `await js.publish(${words.join(", ")})${note}`;
}
