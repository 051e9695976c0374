"""The envelope: one message, or a batch of records, with all it asks for, in the bytes of a NATS payload.

For publishers whose client has no NATS headers, and for those who send many records at once::

    payload = encode_message(b"shipped", key=b"order-17", message_id=b"e-4711")
    payload = encode_batch(arrow_stream, records=1000, message_id=b"file-12")

Little-endian throughout; the fields of the header, and all limits, are on the page docs/envelope.md:

    offset  size  part
    0       4     cookie, 8a 4a 53 45
    4       1     version, 1
    5       1     kind: 1 a message, 2 a batch
    6       2     flags: 1 the payload is one zstd frame, 2 a tombstone
    8       4     length of the header, H
    12      4     CRC32C of everything but these 4 bytes
    16      H     header: fields, each its number (1 byte), its length (2 bytes) and its value
    16+H          payload

Bytes that do not begin with the cookie, or whose CRC does not fit, are no envelope but somebody's payload.
Everything else that is wrong is an envelope that cannot be taken: a typed error.

Sources: Liftbridge's envelope protocol (a magic number that is no UTF-8); RFC 3720 (CRC32C); RFC 8878 (zstd).
"""

import struct
from collections.abc import Sequence
from enum import IntEnum, IntFlag
from typing import Final, NamedTuple, TypedDict, Unpack

import zstandard
from crc32c import crc32c

from envelope.errors import InvalidEnvelope, InvalidSubject, RecordTooLarge, Unsupported
from envelope.limits import (
    ACK_INBOX_BYTES_MAX,
    CORRELATION_ID_BYTES_MAX,
    ENVELOPE_HEADER_BYTES_MAX,
    MESSAGE_ID_BYTES_MAX,
)
from envelope.subjects import validated_subject
from envelope.types import AckPolicy

COOKIE: Final = b"\x8aJSE"
"""No UTF-8 text begins with it."""

AFTER_COOKIE: Final = b"\x8aJSF"
"""Bytes begin with the cookie if ``COOKIE <= bytes < AFTER_COOKIE``: one comparison for nearly all others."""

VERSION: Final = 1

_FIXED: Final = struct.Struct("<4sBBHI")
_CRC: Final = struct.Struct("<I")
_START: Final = struct.Struct(_FIXED.format + "I")
_FIELD: Final = struct.Struct("<BH")
_U16: Final = struct.Struct("<H")
_EXTENT_VALUE: Final = struct.Struct("<II")
_I64: Final = struct.Struct("<q")
_HEADER_AT: Final = _START.size
_EXTENT_END: Final = _HEADER_AT + _FIELD.size + _EXTENT_VALUE.size
_FIELD_BYTES_MAX: Final = (1 << 16) - 1
_COPY_BYTES_MAX: Final = 4096
"""Up to here a copy costs less than a view."""

assert _HEADER_AT == 16


class Kind(IntEnum):
    """The content of an envelope."""

    MESSAGE = 1
    BATCH = 2


class Flags(IntFlag):
    """The form of an envelope's payload."""

    ZSTD = 1
    TOMBSTONE = 2


# The fields of the header, in the order in which they stand. Plain numbers, as all that is looked at for
# every message: an enum's members cost more than all the rest.
_EXTENT, _MESSAGE_ID, _KEY, _TXID, _ACK, _ACK_INBOX, _CORRELATION_ID, _HEADER = range(1, 9)
_NAMES: Final = (
    *("the extent", "the message id", "the key", "the txid", "the ack policy", "the ack inbox"),
    *("the correlation id", "a header"),
)

_KINDS: Final = {kind.value: kind for kind in Kind}
_ZSTD, _TOMBSTONE = Flags.ZSTD.value, Flags.TOMBSTONE.value
_POLICIES: Final = (AckPolicy.NONE, AckPolicy.LEADER, AckPolicy.ALL)
_EXTENT_START: Final = _FIELD.pack(_EXTENT, _EXTENT_VALUE.size)


_Asked = tuple[bytes | None, bytes | None, int | None, AckPolicy | None, bytes | None, str | None]
_NOTHING: Final[_Asked] = (None, None, None, None, None, None)


class HeaderFields(TypedDict, total=False):
    """The optional fields of an envelope; None and a missing field ask for nothing."""

    message_id: bytes | None
    """As the header ``Nats-Msg-Id``; of a batch, of all its records together."""
    key: bytes | None
    """As ``Jetstream-Key``; any bytes. Not in a batch, whose records have a column for it."""
    txid: int | None
    """As ``Jetstream-Txid``; not in a batch either."""
    ack: AckPolicy | None
    """As ``Jetstream-Ack``."""
    ack_inbox: str | None
    """Where to answer if the NATS message has no reply subject."""
    correlation_id: str | None
    """Comes back in the answer."""
    headers: Sequence[tuple[str, bytes]]
    """Stored with the record, behind the headers of the NATS message; of a batch, with its last record."""


class Envelope(NamedTuple):
    """A received envelope, its header read; `content` reads its payload."""

    kind: Kind
    message_id: bytes | None = None
    key: bytes | None = None
    txid: int | None = None
    ack: AckPolicy | None = None
    ack_inbox: bytes | None = None
    correlation_id: str | None = None
    headers: Sequence[tuple[str, bytes]] = ()
    tombstone: bool = False
    records: int = 1
    payload: bytes | memoryview = b""
    """As it came."""
    size_bytes: int = 0
    """Of the payload, decompressed."""
    compressed: bool = False

    def content(self, bytes_max: int) -> bytes | memoryview:
        """Return the payload, decompressed.

        Raises:
            RecordTooLarge: it has more than ``bytes_max`` bytes.
            InvalidEnvelope: it is not one zstd frame of the length that the header says.
        """
        if self.size_bytes > bytes_max:
            raise RecordTooLarge(
                f"message size exceeds maximum allowed: {self.size_bytes} bytes, the limit is {bytes_max}"
            )
        return _decompressed(self.payload, self.size_bytes) if self.compressed else self.payload


# --- encoding -----------------------------------------------------------------------------------------


def encode_message(value: bytes | None, *, compress: bool = False, **fields: Unpack[HeaderFields]) -> bytes:
    """Return the envelope of one message; ``value`` None is a tombstone.

    Raises:
        InvalidEnvelope: something is too long, or is no subject.
        TypeError: a field that does not exist.
    """
    flags = Flags.TOMBSTONE if value is None else Flags(0)
    payload = value or b""
    extent = (1, len(payload)) if compress else None
    if compress:
        flags, payload = flags | Flags.ZSTD, _compressed(payload)
    return _assemble(Kind.MESSAGE, flags, extent, fields, (payload,))


def encode_batch(
    arrow: bytes | Sequence[bytes | memoryview],
    records: int,
    *,
    compress: bool = False,
    **fields: Unpack[HeaderFields],
) -> bytes:
    """Return the envelope of a batch.

    Args:
        arrow: an Arrow IPC stream of one record batch, perhaps in pieces; docs/envelope.md says which columns
            it may have.
        records: how many it holds.
        compress: put it into one zstd frame.
        fields: see `HeaderFields`; a batch has no ``key`` and no ``txid``.

    Raises:
        InvalidEnvelope: something is too long, or is no subject.
        TypeError: a field that does not exist.
    """
    flags = Flags.ZSTD if compress else Flags(0)
    pieces = (arrow,) if isinstance(arrow, bytes) else arrow
    size = sum(map(len, pieces))
    payload = (_compressed(b"".join(pieces)),) if compress else pieces
    return _assemble(Kind.BATCH, flags, (records, size), fields, payload)


def _assemble(
    kind: Kind,
    flags: Flags,
    extent: tuple[int, int] | None,
    fields: HeaderFields,
    payload: Sequence[bytes | memoryview],
) -> bytes:
    unknown = fields.keys() - HeaderFields.__optional_keys__
    if unknown:
        raise TypeError(f"an envelope has no {', '.join(sorted(unknown))}")
    txid, ack, inbox = fields.get("txid"), fields.get("ack"), fields.get("ack_inbox")
    correlation_id = fields.get("correlation_id")
    given: tuple[tuple[int, bytes | None], ...] = (
        (_EXTENT, None if extent is None else _EXTENT_VALUE.pack(*extent)),
        (_MESSAGE_ID, fields.get("message_id")),
        (_KEY, fields.get("key")),
        (_TXID, None if txid is None else _I64.pack(txid)),
        (_ACK, None if ack is None else bytes((_POLICIES.index(ack),))),
        (_ACK_INBOX, None if inbox is None else inbox.encode()),
        (_CORRELATION_ID, None if correlation_id is None else correlation_id.encode()),
    )
    header = [_field(number, value) for number, value in given if value is not None]
    for name, value in fields.get("headers", ()):
        header.append(_field(_HEADER, _U16.pack(len(name.encode())) + name.encode() + value))
    fields_bytes = b"".join(header)
    fixed = _FIXED.pack(COOKIE, VERSION, kind, flags, len(fields_bytes))
    crc = crc32c(fields_bytes, crc32c(fixed))
    for piece in payload:
        crc = crc32c(piece, crc)
    whole = b"".join((fixed, _CRC.pack(crc), fields_bytes, *payload))
    # What the node would refuse is refused here.
    end = _HEADER_AT + len(fields_bytes)
    if len(fields_bytes) > ENVELOPE_HEADER_BYTES_MAX:
        raise InvalidEnvelope(f"the envelope's header has {len(fields_bytes)} bytes")
    _envelope(kind, flags, *_fields(whole, end), memoryview(whole)[end:])
    return whole


def _field(number: int, value: bytes) -> bytes:
    if len(value) > _FIELD_BYTES_MAX:
        raise InvalidEnvelope(f"{_NAMES[number - 1]} has {len(value)} bytes, a field {_FIELD_BYTES_MAX}")
    return _FIELD.pack(number, len(value)) + value


def _compressed(payload: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=False, write_content_size=True).compress(payload)


# --- decoding -----------------------------------------------------------------------------------------


def claimed(data: bytes) -> tuple[int, int]:
    """Return how many records, and how many bytes of payload, ``data`` claims to hold if it is an envelope.

    Neither is checked: the claim says beforehand how much taking it in may cost at most.
    """
    if len(data) < _HEADER_AT + _FIELD.size + _EXTENT_VALUE.size or not data.startswith(
        _EXTENT_START, _HEADER_AT
    ):
        return 1, len(data)
    records, size = _EXTENT_VALUE.unpack_from(data, _HEADER_AT + _FIELD.size)
    return records, size


def may_be_batch(data: bytes) -> bool:
    """Return whether ``data``, which begins with the cookie, is a batch if it is an envelope."""
    return data[5:6] == b"\x02"


def decode(data: bytes) -> Envelope | None:
    """Return the envelope that ``data`` is, its payload not looked at; None if it is none.

    Raises:
        InvalidEnvelope: it is one, and its header is not what the format says.
        Unsupported: it is one of a version, kind or field that this version does not know.
    """
    if len(data) < _HEADER_AT or not COOKIE <= data < AFTER_COOKIE:
        return None
    rest = data[_HEADER_AT:] if len(data) <= _COPY_BYTES_MAX else memoryview(data)[_HEADER_AT:]
    _, version, kind_number, flags, header_bytes, crc = _START.unpack_from(data)
    if crc32c(rest, crc32c(data[: _FIXED.size])) != crc:
        return None
    kind = _KINDS.get(kind_number)
    if version != VERSION or kind is None or flags & ~(_ZSTD | _TOMBSTONE):
        raise Unsupported(f"envelope of version {version}, kind {kind_number}, flags {flags:#06x}")
    end = _HEADER_AT + header_bytes
    if header_bytes > ENVELOPE_HEADER_BYTES_MAX or end > len(data):
        raise InvalidEnvelope(f"the envelope's header claims {header_bytes} bytes")
    found, headers = _fields(data, end) if header_bytes else ({}, ())
    return _envelope(kind, flags, found, headers, rest[header_bytes:])


def _fields(data: bytes, end: int) -> tuple[dict[int, bytes], Sequence[tuple[str, bytes]]]:
    """Return the fields between the fixed part and ``end`` by number, and the headers among them."""
    found: dict[int, bytes] = {}
    headers: list[tuple[str, bytes]] = []
    position, last = _HEADER_AT, 0
    while position < end:
        start = position + _FIELD.size
        number, size = _FIELD.unpack_from(data, position) if start <= end else (0, 0)
        position = start + size
        if position > end:
            raise InvalidEnvelope("a field reaches beyond the envelope's header")
        if number == _HEADER:
            headers.append(_header(data[start:position]))
        elif number <= last or number > _HEADER:
            _refuse_field(number, last)
        else:
            found[number] = data[start:position]
        last = number
    return found, headers


def _refuse_field(number: int, last: int) -> None:
    if number > _HEADER:
        raise Unsupported(f"envelope field {number}")
    raise InvalidEnvelope(f"envelope field {number} behind field {last}: they stand in order, and once")


def _header(value: bytes) -> tuple[str, bytes]:
    end = _U16.size + (_U16.unpack_from(value)[0] if len(value) >= _U16.size else len(value))
    name = value[_U16.size : end]
    if end > len(value) or not name:
        raise InvalidEnvelope("a header of the envelope has no name")
    try:
        return name.decode(), value[end:]
    except UnicodeDecodeError:
        raise InvalidEnvelope(f"header name {name[:64]!r} is not UTF-8") from None


def _envelope(
    kind: Kind,
    flags: int,
    fields: dict[int, bytes],
    headers: Sequence[tuple[str, bytes]],
    payload: bytes | memoryview,
) -> Envelope:
    records, size = 1, len(payload)
    if flags or kind is not Kind.MESSAGE or _EXTENT in fields:
        records, size = _extent(kind, flags, fields, size)
    asked = _asked(fields) if fields else _NOTHING
    tombstone, compressed = flags & _TOMBSTONE != 0, flags & _ZSTD != 0
    # What `Envelope(…)` does, at a third of the cost, which is a fifth of that of all the rest.
    return tuple.__new__(Envelope, (kind, *asked, headers, tombstone, records, payload, size, compressed))


def _extent(kind: Kind, flags: int, fields: dict[int, bytes], size: int) -> tuple[int, int]:
    """Return how many records there are, and how many bytes of payload when it is decompressed."""
    extent = fields.get(_EXTENT)
    stated = (1, size)
    if kind is Kind.BATCH or flags & _ZSTD:
        if extent is None or len(extent) != _EXTENT_VALUE.size:
            raise InvalidEnvelope("a batch, and a zstd payload, have their extent in the header, 8 bytes")
        stated = _EXTENT_VALUE.unpack(extent)
    elif extent is not None:
        raise InvalidEnvelope("a message that is not compressed has no extent")
    if kind is Kind.BATCH and (_KEY in fields or _TXID in fields or flags & _TOMBSTONE):
        raise InvalidEnvelope("a batch has its keys, txids and tombstones in its columns")
    if stated[0] == 0 or (kind is Kind.MESSAGE and stated[0] != 1):
        raise InvalidEnvelope(f"the extent of a {kind.name.lower()} says {stated[0]} records")
    if flags & _TOMBSTONE and stated[1]:
        raise InvalidEnvelope("a tombstone has no payload")
    if not flags & _ZSTD and stated[1] != size:
        raise InvalidEnvelope(f"the extent says {stated[1]} bytes of payload, there are {size}")
    return stated


def _asked(fields: dict[int, bytes]) -> _Asked:
    """Return the values of the fields, in the order in which `Envelope` has them."""
    message_id, txid, ack = fields.get(_MESSAGE_ID), fields.get(_TXID), fields.get(_ACK)
    inbox, correlation_id = fields.get(_ACK_INBOX), fields.get(_CORRELATION_ID)
    if message_id is not None and not 0 < len(message_id) <= MESSAGE_ID_BYTES_MAX:
        raise InvalidEnvelope(f"a message id has 1 to {MESSAGE_ID_BYTES_MAX} bytes, not {len(message_id)}")
    return (
        message_id,
        fields.get(_KEY),
        None if txid is None else _txid(txid),
        None if ack is None else _policy(ack),
        None if inbox is None else _inbox(inbox),
        None if correlation_id is None else _correlation_id(correlation_id),
    )


def _txid(value: bytes) -> int:
    if len(value) != _I64.size:
        raise InvalidEnvelope(f"a txid has {_I64.size} bytes, not {len(value)}")
    txid: int = _I64.unpack(value)[0]
    return txid


def _policy(value: bytes) -> AckPolicy:
    if len(value) != 1 or value[0] >= len(_POLICIES):
        raise InvalidEnvelope(f"ack policy {value[:8]!r}: it is one byte, 0 none, 1 leader, 2 all")
    return _POLICIES[value[0]]


def _inbox(value: bytes) -> bytes:
    """Return a subject that may be put into a NATS command as it is."""
    try:
        if len(value) > ACK_INBOX_BYTES_MAX:
            raise InvalidEnvelope(f"the ack inbox has {len(value)} bytes, the limit is {ACK_INBOX_BYTES_MAX}")
        subject = validated_subject(value.decode())
    except (UnicodeDecodeError, InvalidSubject):
        raise InvalidEnvelope(f"the ack inbox {value[:64]!r} is no subject") from None
    if subject.startswith("$"):
        raise InvalidEnvelope(f"the ack inbox {value[:64]!r} belongs to NATS")
    return value


def _correlation_id(value: bytes) -> str:
    if not 0 < len(value) <= CORRELATION_ID_BYTES_MAX:
        raise InvalidEnvelope(f"a correlation id has 1 to {CORRELATION_ID_BYTES_MAX} bytes, not {len(value)}")
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise InvalidEnvelope(f"the correlation id {value[:64]!r} is not UTF-8") from None


def _decompressed(payload: bytes | memoryview, size: int) -> bytes:
    """Return what one frame holds; it says itself that it is ``size`` bytes: no more is allocated."""
    try:
        stated = zstandard.frame_content_size(payload)
        if stated != size:
            raise InvalidEnvelope(f"the header says {size} bytes of payload, the zstd frame {stated}")
        content = zstandard.ZstdDecompressor().decompress(
            payload, max_output_size=size, allow_extra_data=False
        )
    except (zstandard.ZstdError, MemoryError) as error:
        raise InvalidEnvelope(f"the payload is not one zstd frame: {error}") from None
    assert len(content) == size, "zstd keeps to the size that the frame states"
    return content
