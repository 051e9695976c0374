// Envelopes in JavaScript, written from docs/envelope.md alone: a message or a batch with all it asks for, in the
// bytes of a NATS payload.
import { Buffer } from 'node:buffer';

const COOKIE = Buffer.from('8a4a5345', 'hex');
const [EXTENT, MESSAGE_ID, KEY, TXID, ACK, ACK_INBOX, CORRELATION_ID, HEADER] = [1, 2, 3, 4, 5, 6, 7, 8];
const POLICIES = ['none', 'leader', 'all'];

const crcTable = Int32Array.from({ length: 256 }, (_, byte) => {
  for (let bit = 0; bit < 8; bit++) byte = byte & 1 ? (byte >>> 1) ^ 0x82f63b78 : byte >>> 1;
  return byte;
});
const crc32c = (bytes) => ~bytes.reduce((crc, byte) => (crc >>> 8) ^ crcTable[(crc ^ byte) & 255], -1) >>> 0;

const u16 = (number) => Buffer.from(Uint16Array.of(number).buffer);
const u32 = (...numbers) => Buffer.from(Uint32Array.from(numbers).buffer); // little-endian, as all machines are
const i64 = (number) => Buffer.from(BigInt64Array.of(BigInt(number)).buffer);
const field = (number, value) => Buffer.concat([Buffer.of(number), u16(value.length), value]);
const header = ([name, value]) => Buffer.concat([u16(Buffer.byteLength(name)), Buffer.from(name), Buffer.from(value)]);

// What all kinds share. `asked`: messageId, key (bytes or text), txid, ack, ackInbox, correlationId, headers, zstd
// (the payload is a zstd frame already), tombstone, extent ([records, bytes when decompressed]).
function envelope(kind, payload, asked) {
  const given = [
    [EXTENT, asked.extent && u32(...asked.extent)],
    [MESSAGE_ID, asked.messageId],
    [KEY, asked.key],
    [TXID, asked.txid == null ? null : i64(asked.txid)],
    [ACK, asked.ack && Buffer.of(POLICIES.indexOf(asked.ack))],
    [ACK_INBOX, asked.ackInbox],
    [CORRELATION_ID, asked.correlationId],
    ...(asked.headers ?? []).map((pair) => [HEADER, header(pair)]),
  ];
  const fields = given.filter(([, value]) => value != null).map(([number, value]) => field(number, Buffer.from(value)));
  const headers = Buffer.concat(fields);
  const flags = (asked.zstd ? 1 : 0) + (asked.tombstone ? 2 : 0);
  const start = Buffer.concat([COOKIE, Buffer.of(1, kind), u16(flags), u32(headers.length)]);
  const checksum = u32(crc32c(Buffer.concat([start, headers, payload])));
  return Buffer.concat([start, checksum, headers, payload]);
}

// One message; without a value a tombstone.
export const message = (value, asked = {}) =>
  envelope(1, Buffer.from(value ?? ''), { ...asked, tombstone: value == null || asked.tombstone });

// Many records: an Arrow IPC stream of one record batch, and how many rows that has.
export const batch = (arrow, records, asked = {}) =>
  envelope(2, Buffer.from(arrow), { extent: [records, arrow.length], ...asked });
