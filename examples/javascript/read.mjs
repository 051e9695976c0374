// Prints a stream from its beginning to the end of what is committed, one JSON line a record:
//
//     npm install && node read.mjs 127.0.0.1 9292 orders
//
// Written from docs/protocol.md alone: frames over TCP, Arrow bodies, a checksum and a range for every batch.
import { Buffer } from 'node:buffer';
import net from 'node:net';
import {
  Binary, Field, Int64, List, Schema, Struct, Table, TimestampMicrosecond, Utf8, tableFromIPC, tableToIPC,
} from 'apache-arrow';

const [host, port, stream] = process.argv.slice(2);
const header = new Struct([new Field('key', new Utf8(), true), new Field('value', new Binary(), true)]);
const schema = new Schema([
  new Field('offset', new Int64()),
  new Field('timestamp', new TimestampMicrosecond('UTC')),
  new Field('subject', new Utf8()),
  new Field('key', new Binary(), true),
  new Field('headers', new List(new Field('item', header, true)), true),
  new Field('txid', new Int64(), true),
  new Field('value', new Binary(), true),
]);
// An Arrow stream is the schema, the messages of a body, and an end marker of 8 bytes.
const empty = Buffer.from(tableToIPC(new Table(schema), 'stream'));
const [schemaMessage, endMarker] = [empty.subarray(0, -8), empty.subarray(-8)];

const crcTable = Int32Array.from({ length: 256 }, (_, byte) => {
  for (let bit = 0; bit < 8; bit++) byte = byte & 1 ? (byte >>> 1) ^ 0x82f63b78 : byte >>> 1;
  return byte;
});
const crc32c = (bytes) => ~bytes.reduce((crc, byte) => (crc >>> 8) ^ crcTable[(crc ^ byte) & 255], -1) >>> 0;

// Takes the batches of a body apart: each is checked against its checksum and must follow the one before.
function checked(body, start, next) {
  for (let at = 0; at < body.length; ) {
    const metadataEnd = at + 8 + body.readInt32LE(at + 4);
    const key = body.lastIndexOf('jetstream', metadataEnd);
    const digitsAt = body.subarray(at, metadataEnd).toString('latin1').search(/[0-9a-f]{80}/) + at;
    const digits = body.toString('latin1', digitsAt, digitsAt + 80);
    const end = at + messageLength(body, at, metadataEnd);
    const message = Buffer.from(body.subarray(at, end)).fill('0', digitsAt - at + 72, digitsAt - at + 80);
    const [base, following] = [8, 24].map((place) => Number(`0x${digits.substr(place, 16)}`));
    if (key < at || crc32c(message) !== parseInt(digits.slice(72), 16)) throw new Error(`batch ${base} is damaged`);
    if (base !== start) throw new Error(`batch ${base} where ${start} should begin`);
    [start, at] = [following, end];
  }
  if (start !== next) throw new Error(`the body ends at ${start}, not at ${next}`);
  return tableFromIPC(Buffer.concat([schemaMessage, body, endMarker]));
}

// A message is its metadata and a body whose length is a field of the metadata (flatbuffer table Message).
function messageLength(body, at, metadataEnd) {
  const root = at + 8 + body.readUInt32LE(at + 8);
  const bodyLength = body.readUInt16LE(root - body.readInt32LE(root) + 10); // vtable entry of Message.bodyLength
  return metadataEnd - at + Number(body.readBigInt64LE(root + bodyLength));
}

const socket = net.connect(Number(port), host);
const incoming = socket[Symbol.asyncIterator]();
let held = Buffer.alloc(0);

async function take(length) {
  while (held.length < length) {
    const { value, done } = await incoming.next();
    if (done) throw new Error('the node has closed the connection');
    held = Buffer.concat([held, value]);
  }
  const taken = held.subarray(0, length);
  held = held.subarray(length);
  return taken;
}

async function ask(request) {
  const text = Buffer.from(JSON.stringify(request));
  const lengths = Buffer.alloc(12);
  lengths.writeUInt32LE(text.length);
  socket.write(Buffer.concat([lengths, text]));
  const head = await take(12);
  const response = JSON.parse(await take(head.readUInt32LE()));
  const body = await take(Number(head.readBigUInt64LE(4)));
  if (response.error) throw new Error(response.error.description);
  return [response, body];
}

await ask({ op: 'hello', id: 0, protocol: 1 });
const [place] = await ask({ op: 'list_offsets', id: 1, stream, at: 'earliest' });
for (let offset = place.offset; offset < place.high_watermark; ) {
  const [response, body] = await ask({ op: 'fetch', id: 2, stream, offset });
  for (const { offset: at, subject, value } of checked(body, response.start_offset, response.next_offset)) {
    const text = value === null ? null : Buffer.from(value).toString();
    if (at >= offset && at < place.high_watermark) console.log(JSON.stringify({ offset: Number(at), subject, value: text }));
  }
  offset = response.next_offset;
}
socket.destroy();
