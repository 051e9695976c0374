// Numbers, times and commands as people write them.

const INTEGER = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const SHORT = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 3 });

export const UNKNOWN = "–";

export function count(number) {
  return number === null || number === undefined ? UNKNOWN : INTEGER.format(number);
}

/** A number of bytes in powers of 1024. */
export function bytes(number) {
  if (number === null || number === undefined) return UNKNOWN;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (number >= 1024 && unit < units.length - 1) {
    number /= 1024;
    unit += 1;
  }
  return `${SHORT.format(number)} ${units[unit]}`;
}

/** A number a second. */
export function rate(number) {
  if (number === null || number === undefined) return UNKNOWN;
  return `${number >= 100 ? INTEGER.format(number) : SHORT.format(number)}/s`;
}

/** A time of ISO 8601 without its date's letters; to the microsecond. */
export function moment(text) {
  return text ? text.replace("T", " ").replace("Z", "") : UNKNOWN;
}

/** Of a time in milliseconds, what a clock on the wall says. */
export function clock(milliseconds) {
  return new Date(milliseconds).toLocaleTimeString("en-GB");
}

const PLAIN = /^[A-Za-z0-9_./:=@%+,-]+$/;
// eslint-disable-next-line no-control-regex
const CONTROL = /[\u0000-\u001f\u007f-\u009f\u2028\u2029\u202a-\u202e\u2066-\u2069]/;

/** A text as one word of a shell; control characters are escaped, so that a terminal sees none of them. */
export function quoted(text) {
  if (PLAIN.test(text)) return text;
  if (!CONTROL.test(text)) return `'${text.replaceAll("'", "'\\''")}'`;
  let word = "";
  for (const character of text) {
    if (character === "\\" || character === "'") word += `\\${character}`;
    else if (CONTROL.test(character)) word += utf8(character).map((byte) => `\\x${hexByte(byte)}`).join("");
    else word += character;
  }
  return `$'${word}'`;
}

/** Bytes as a literal of Python. */
export function pythonBytes(octets) {
  let literal = "";
  for (const byte of octets) {
    const character = String.fromCharCode(byte);
    if (character === "\\" || character === '"') literal += `\\${character}`;
    else literal += byte >= 0x20 && byte < 0x7f ? character : `\\x${hexByte(byte)}`;
  }
  return `b"${literal}"`;
}

/** A text as a literal of Python: JSON's, in ASCII, but for pairs of surrogates. */
export function pythonText(text) {
  let literal = "";
  for (const character of text) {
    const code = character.codePointAt(0);
    if (code < 0x7f) literal += JSON.stringify(character).slice(1, -1);
    else if (code > 0xffff) literal += `\\U${code.toString(16).padStart(8, "0")}`;
    else literal += `\\u${code.toString(16).padStart(4, "0")}`;
  }
  return `"${literal}"`;
}

export function utf8(text) {
  return [...new TextEncoder().encode(text)];
}

export function hexByte(byte) {
  return byte.toString(16).padStart(2, "0");
}

/** Returns a path below /v1 with each of the parts encoded. */
export function v1(...parts) {
  return `v1/${parts.map((part) => part.split("/").map(encodeURIComponent).join("/")).join("/")}`;
}

/** Returns `?a=b&c=d` of the values that are there, or nothing. */
export function query(values) {
  const given = Object.entries(values).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return given.length ? `?${given.map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join("&")}` : "";
}
