"""Cursors: what a consumer stores to know where to read on, and the table of all of them.

A cursor is the last record of its key in the internal stream ``__cursors``. Its value is JSON that begins
with the version of the format::

    {"v":1,"offset":42,"incarnation":"6d3f…","metadata":"any text"}

``offset`` is the next one to read; the others are absent if they are not set. The key says whose it is:
``plain/<consumer>/<stream>``, written by the consumer itself. Names have namespaces separated by ``/``, so a
``/`` inside a name is written as ``.``, which no name has: otherwise ``a/b`` in ``c`` and ``a`` in ``b/c``
would share a cursor. Keys that begin with ``group/`` are those of consumer groups
(`consumer_groups.shard.records`).
"""

import json
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from envelope.errors import CorruptDataError, InvalidCursor, InvalidName
from envelope.limits import CURSOR_INCARNATION_CHARS_MAX, CURSOR_METADATA_BYTES_MAX
from envelope.subjects import validated_stream_name
from envelope.types import NO_OFFSET, Offset, TimestampUs

CURSOR_OFFSET_MAX: Final = 1 << 62

_FORMAT: Final = 1
_PLAIN: Final = "plain"
_FIELDS: Final = frozenset(("offset", "incarnation", "metadata"))


class PlainKey(NamedTuple):
    """Whose cursor it is: ordered by consumer, then by stream."""

    consumer: str
    stream: str


class CursorPosition(NamedTuple):
    """Where a consumer reads on."""

    offset: int
    """The next one to read, up to `CURSOR_OFFSET_MAX`."""
    incarnation: str | None = None
    """Of the stream the offset belongs to, if the consumer said so."""
    metadata: str | None = None
    """The consumer's own."""


class Cursor(NamedTuple):
    """A place that is stored."""

    key: PlainKey
    place: CursorPosition
    committed_at: TimestampUs
    """When its leader took it."""
    at: Offset
    """Of its record in ``__cursors``."""


class CursorRecord(NamedTuple):
    """The content of one record of ``__cursors``; made by `read_record`."""

    key: PlainKey
    at: Offset
    cursor: Cursor | None
    """None: there is none any more, or none that this version can read."""
    is_readable: bool = True


def records_behind(place: int | None, log_start_offset: int, high_watermark: int) -> int:
    """Return how many committed offsets are still to be read from ``place``; all of them if it is None."""
    return max(0, high_watermark - max(log_start_offset, place or 0))


# --- keys ---------------------------------------------------------------------------------------------


def plain_key(consumer: str, stream: str) -> bytes:
    """Return the key of a consumer's cursor in a stream.

    Raises:
        InvalidCursor: a name is outside the grammar of stream names.
    """
    for kind, name in (("consumer", consumer), ("stream", stream)):
        try:
            validated_stream_name(name)
        except InvalidName as error:
            raise InvalidCursor(f"the {kind}'s name: {error.description}") from None
    return f"{_PLAIN}/{as_part(consumer)}/{as_part(stream)}".encode()


def read_plain_key(key: bytes) -> PlainKey | None:
    """Return what `plain_key` made ``key`` of; None if it has not made it."""
    try:
        _, consumer, stream = key.decode().split("/")
        plain = PlainKey(of_part(consumer), of_part(stream))
        return plain if plain_key(*plain) == key else None
    except (ValueError, InvalidCursor):
        return None


def as_part(name: str) -> str:
    """Return how a name is written as one part of a key."""
    return name.replace("/", ".")


def of_part(part: str) -> str:
    """Return the name that is written as ``part``, if any is."""
    return part.replace(".", "/")


# --- values -------------------------------------------------------------------------------------------


def read_place(published: bytes) -> CursorPosition:
    """Return what a client published: JSON, an offset or an object with ``offset`` and what else is set.

    Raises:
        InvalidCursor: it is something else, has an unknown field, or a value is out of its range.
    """
    body = _json(published)
    if isinstance(body, dict):
        unknown = sorted(body.keys() - _FIELDS)
        if unknown:
            raise InvalidCursor(f"unknown field {unknown[0][:64]!r}; there are: {', '.join(sorted(_FIELDS))}")
        if "offset" not in body:
            raise InvalidCursor("offset is required")
        return _place(body)
    return _place({"offset": body})


def publish_place(place: CursorPosition) -> bytes:
    """Return what a client publishes; raises as `encode_place`."""
    return _object(_fields_of(place))


def encode_place(place: CursorPosition, **beside: int) -> bytes:
    """Return the value that is stored, with these fields beside the place; equal ones are equal bytes.

    Raises:
        InvalidCursor: a value is out of its range.
    """
    others = (f'"{name}":{value}' for name, value in beside.items())
    return _object((f'"v":{_FORMAT}', *_fields_of(place), *others))


def decode_place(value: bytes) -> CursorPosition:
    """Return the place in a stored value; fields that a newer version has added are passed over.

    Raises:
        InvalidCursor: it is none of this format.
    """
    return decode_fields(value)[0]


def decode_fields(value: bytes) -> tuple[CursorPosition, Mapping[str, object]]:
    """Return the place in a stored value, and all of its fields; raises as `decode_place`."""
    body = _json(value)
    if not isinstance(body, dict) or body.get("v") != _FORMAT:
        raise InvalidCursor(f"no cursor of format {_FORMAT}")
    return _place(body), body


def _fields_of(place: CursorPosition) -> list[str]:
    """Return the fields of an object: a thousand cursors a second are worth writing them by hand."""
    offset, incarnation, metadata = _validated(*place)
    fields = [f'"offset":{offset}']
    if incarnation is not None:
        fields.append(f'"incarnation":"{incarnation}"')  # letters, digits and dashes
    if metadata is not None:
        fields.append(f'"metadata":{json.dumps(metadata, ensure_ascii=False)}')
    return fields


def _object(fields: Iterable[str]) -> bytes:
    return f"{{{','.join(fields)}}}".encode()


def _json(text: bytes) -> object:
    try:
        body: object = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise InvalidCursor(f"a cursor is JSON, an offset or an object: {error}") from None
    return body


def _place(fields: dict[str, object]) -> CursorPosition:
    return _validated(fields.get("offset"), fields.get("incarnation"), fields.get("metadata"))


def _validated(offset: object, incarnation: object, metadata: object) -> CursorPosition:
    if not isinstance(offset, int) or isinstance(offset, bool) or not 0 <= offset <= CURSOR_OFFSET_MAX:
        raise InvalidCursor(f"offset: a whole number from 0 to {CURSOR_OFFSET_MAX}")
    if incarnation is not None and not _is_incarnation(incarnation):
        raise InvalidCursor("incarnation: that of a stream, as its info tells it")
    if metadata is not None and _utf8_bytes(metadata) > CURSOR_METADATA_BYTES_MAX:
        raise InvalidCursor(f"metadata: a text of at most {CURSOR_METADATA_BYTES_MAX} bytes")
    assert incarnation is None or isinstance(incarnation, str), "checked above"
    assert metadata is None or isinstance(metadata, str), "checked above"
    return CursorPosition(offset, incarnation, metadata)


def _is_incarnation(value: object) -> bool:
    if not isinstance(value, str) or not 1 <= len(value) <= CURSOR_INCARNATION_CHARS_MAX:
        return False
    return value.isascii() and value.replace("-", "").isalnum()


def _utf8_bytes(value: object) -> int:
    """Return how many bytes a text has; too many if it is none, or no UTF-8 can be made of it."""
    try:
        return len(value.encode()) if isinstance(value, str) else CURSOR_METADATA_BYTES_MAX + 1
    except UnicodeEncodeError:
        return CURSOR_METADATA_BYTES_MAX + 1


# --- the table ----------------------------------------------------------------------------------------


def read_record(
    key: bytes | None, value: bytes | None, at: Offset, committed_at: TimestampUs
) -> CursorRecord | None:
    """Return what a record of ``__cursors`` says of a plain cursor; None if it is of none."""
    plain = None if key is None else read_plain_key(key)
    if plain is None:
        return None
    if value is None:
        return CursorRecord(plain, at, None)
    try:
        return CursorRecord(plain, at, Cursor(plain, decode_place(value), committed_at, at))
    except InvalidCursor:
        return CursorRecord(plain, at, None, is_readable=False)


class CursorTable:
    """The plain cursors as the records below `end` say; those are replayed in the order of their offsets.

    A value that this version cannot read hides the cursor before it, as compaction would remove that one: the
    answer must not depend on who has compacted what. A request for it reports that.

    Invariant:
        U1: `end` never goes back, and no record is replayed twice.
    """

    def __init__(self) -> None:
        """Know nothing yet."""
        self.end = NO_OFFSET
        """The offset after what was replayed."""
        self._cursors: dict[PlainKey, Cursor] = {}
        self._unreadable: dict[PlainKey, Offset] = {}

    def __len__(self) -> int:
        """Number of cursors that can be told."""
        return len(self._cursors)

    @property
    def unreadable(self) -> int:
        """Keys whose last value this version cannot read."""
        return len(self._unreadable)

    def replay(self, records: Iterable[CursorRecord], end: Offset) -> None:
        """Take in the records of offsets from the present end to ``end``; the last one of each key is enough.

        They come in the order of their offsets.
        """
        assert end >= self.end, f"U1: {end} after {self.end}"
        previous = self.end - 1
        for record in records:
            assert previous < record.at < end, f"U1: {record.at} after {previous}, before {end}"
            previous = record.at
            key = record.key
            self._unreadable.pop(key, None)
            if record.cursor is not None:
                self._cursors[key] = record.cursor
                continue
            self._cursors.pop(key, None)
            if not record.is_readable:
                self._unreadable[key] = record.at
        self.end = end

    def get(self, consumer: str, stream: str) -> Cursor | None:
        """Return a consumer's cursor in a stream; None if it has none.

        Raises:
            CorruptDataError: it was stored in a format that this version does not know.
        """
        key = PlainKey(consumer, stream)
        if key in self._unreadable:
            at = self._unreadable[key]
            raise CorruptDataError(f"the cursor at offset {at} is none of format {_FORMAT}", offset=at)
        return self._cursors.get(key)

    def all(self) -> tuple[Cursor, ...]:
        """Return all cursors as they are now, in no order: one copy, to be looked at elsewhere."""
        return tuple(self._cursors.values())


def selected(cursors: Iterable[Cursor], consumer: str | None, stream: str | None) -> list[Cursor]:
    """Return those of a consumer, of a stream, or both, in the order of consumers, then of streams."""
    found = [
        cursor
        for cursor in cursors
        if (consumer is None or cursor.key.consumer == consumer)
        and (stream is None or cursor.key.stream == stream)
    ]
    return sorted(found, key=_key)


def _key(cursor: Cursor) -> PlainKey:
    return cursor.key
