"""How far a query is in its streams, as Spark's checkpoint keeps it; pure.

The JSON is ``{"v": 1, "streams": {"orders": {"id": "c932c8bd567b9b11", "offset": 42}}}``: the next offset to
read, and the incarnation of the stream, so that an offset is never taken for one of another life. Of a
partitioned stream each partition is a stream, ``orders/2``.

A stream that a batch reads for the first time has ``"start"`` too: where the batch begins in it. Spark writes
the end of a batch down before it runs it, and the end of the batch before is its beginning. A stream that is
new has no such beginning, and neither has the first batch of all: Spark asks for ``initialOffset`` again when
it has to repeat that one. "earliest" and "latest" have moved on by then; looked up again they would leave out
records that were in the batch as it was planned. So `INITIAL` says nothing but that nothing was read, and the
end of the first batch says all.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from envelope.errors import RequestError
from jetstream.protocol.request_base import INTEGER_MAX

VERSION: Final = 1

INITIAL: Final[Mapping[str, object]] = {"v": VERSION, "streams": {}, "initial": True}
"""The offset of a query that has not begun; the same at every start."""


class StreamOffset(NamedTuple):
    """How far a query is in one stream; of a partitioned stream in one partition."""

    incarnation: str
    offset: int
    """The next one to read."""
    start: int | None = None
    """In the end of a batch: where the batch begins, if not where the one before has ended."""


Offsets = dict[str, StreamOffset]


def encode_offsets(offsets: Offsets) -> dict[str, object]:
    """Return the JSON object that Spark keeps."""
    return {"v": VERSION, "streams": {stream: _encoded(offsets[stream]) for stream in sorted(offsets)}}


def is_initial(json: Mapping[str, object]) -> bool:
    """Return whether the query has not begun, so that its first batch begins where the options name."""
    return json.get("initial") is True


def decode_offsets(json: Mapping[str, object]) -> Offsets:
    """Return the offsets in the JSON object.

    Raises:
        RequestError: it is of another version or source, lacks a field, or has an invalid one.
    """
    version = json.get("v")
    if version != VERSION or isinstance(version, bool):
        raise RequestError(f"checkpoint: version {version!r} of its offsets, {VERSION} can be read")
    _check_fields("", json, required={"v", "streams"}, optional={"initial"})
    streams = json["streams"]
    if not isinstance(streams, Mapping):
        raise RequestError(f"checkpoint: streams is {streams!r}, not an object")
    return {str(stream): _decoded(str(stream), told) for stream, told in streams.items()}


def _encoded(place: StreamOffset) -> dict[str, object]:
    told: dict[str, object] = {"id": place.incarnation, "offset": place.offset}
    return told if place.start is None else told | {"start": place.start}


def _decoded(stream: str, fields: object) -> StreamOffset:
    if not isinstance(fields, Mapping):
        raise RequestError(f"checkpoint: {stream} is {fields!r}, not an object")
    _check_fields(f"{stream}: ", fields, required={"id", "offset"}, optional={"start"})
    incarnation = fields["id"]
    if not isinstance(incarnation, str) or not incarnation:
        raise RequestError(f"checkpoint: {stream}: id is {incarnation!r}")
    offset = _decoded_offset(stream, "offset", fields["offset"])
    if "start" not in fields:
        return StreamOffset(incarnation, offset)
    start = _decoded_offset(stream, "start", fields["start"])
    if start > offset:
        raise RequestError(f"checkpoint: {stream}: a batch from {start} to {offset}")
    return StreamOffset(incarnation, offset, start)


def _decoded_offset(stream: str, field: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= INTEGER_MAX:
        raise RequestError(f"checkpoint: {stream}: {field} is {value!r}, not an offset")
    return value


def _check_fields(
    where: str, fields: Mapping[str, object], *, required: set[str], optional: set[str]
) -> None:
    missing, unknown = required - fields.keys(), fields.keys() - required - optional
    if missing or unknown:
        problems = [f"no {name}" for name in sorted(missing)]
        problems += [f"an unknown field {name}" for name in sorted(map(str, unknown))]
        raise RequestError(f"checkpoint: {where}{', '.join(problems)}")
