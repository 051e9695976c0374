"""The bytes of what followers and leaders say to each other.

One connection carries all streams of which one node follows the other. The follower's end declares each under
a handle before it first speaks of it; messages name the handle. All numbers are little-endian:

    offset size field
    0      4    length of the header, u32: what follows the checksum, without the body
    4      4    CRC32C of the header
    8      1    kind
    9      -    the kind's numbers in the order of its fields: handle and body_bytes u32, asks one byte,
                others u64
    -      -    `Declare`: length u16 and UTF-8 bytes of the name, then of the incarnation
    -      -    `BatchesMessage` and `StartOverMessage`: length u32 and bytes of the note
    -      -    `BatchesMessage`: its epochs up to the end, each: epoch u64, first offset u64
    -      -    `RefusedMessage`: the reason, one byte

The body of a `BatchesMessage` or a `RepairAnswer` follows its header: batches as they are in the log. It is
not under the checksum, as each batch has its own; whoever appends it verifies those.

`encode` and `WireReader` are each other's inverse. What arrives damaged, or is no message, is an error:
nothing that follows on that connection can be told apart any more.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Final

from crc32c import crc32c

from envelope.errors import RemoteProtocolError
from envelope.limits import MIB, RESPONSE_BODY_BYTES_MAX, STREAM_NAME_CHARS_MAX
from envelope.types import Incarnation, LeaderEpoch, NodeEpoch, Offset, StreamName
from jetstream.replica.leader_events import FetchRefusal

HEADER_BYTES_MAX: Final = 16 * MIB
"""A longer one is no message: room for a note, and the epochs of a body in which every batch has its own."""

BODY_BYTES_MAX: Final = RESPONSE_BODY_BYTES_MAX
"""Of one answer: as much as a reader is sent at once, so that the largest batch fits."""

# --- from the follower's end ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Declare:
    """From now on the handle stands for this life of that stream, on this connection."""

    handle: int
    name: StreamName
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class FetchMessage:
    """`jetstream.replica.leader_events.FetchArrived`, from whoever is at the other end."""

    handle: int
    node_epoch: NodeEpoch
    leader_epoch: LeaderEpoch
    last_epoch: LeaderEpoch
    log_end: Offset
    synced_end: Offset
    high_watermark: Offset
    asks: bool


@dataclass(frozen=True, slots=True)
class RepairMessage:
    """Ask for the batches from the one with ``offset`` on, none of them beyond ``end``.

    Whoever asks has had them, and its own are damaged; who leads does not matter.
    """

    handle: int
    offset: Offset
    end: Offset


@dataclass(frozen=True, slots=True)
class Ping:
    """Say that you live."""


# --- from the leader's end ------------------------------------------------------------------------------


@dataclass(slots=True)
class BatchesMessage:
    """`jetstream.replica.follower_events.Batches`, and the batches themselves."""

    handle: int
    leader_epoch: LeaderEpoch
    last_epoch: LeaderEpoch
    base: Offset
    next: Offset
    high_watermark: Offset
    log_start_offset: Offset
    """Where the leader's log begins."""
    purged_end: Offset
    """Tombstones below may be missing there."""
    epochs: tuple[tuple[LeaderEpoch, Offset], ...]
    """Epoch and first offset of each `EpochBegins`."""
    body_bytes: int
    body: bytes = b""
    """As received; whoever sends it need not have it in memory."""
    note: bytes = b""
    """What the leader knows of committed records that may be gone, as its note's file would say it, for who
    is about to come into the ISR; empty: nothing, or not now."""


@dataclass(frozen=True, slots=True)
class DivergingMessage:
    """`jetstream.replica.follower_events.DivergingAnswer`."""

    handle: int
    leader_epoch: LeaderEpoch
    last_epoch: LeaderEpoch
    log_end: Offset
    epoch: LeaderEpoch
    end: Offset


@dataclass(frozen=True, slots=True)
class StartOverMessage:
    """`jetstream.replica.follower_events.StartOverAnswer`."""

    handle: int
    leader_epoch: LeaderEpoch
    last_epoch: LeaderEpoch
    log_end: Offset
    log_start_offset: Offset
    note: bytes = b""
    """As that of a `BatchesMessage`."""


@dataclass(frozen=True, slots=True)
class RefusedMessage:
    """`jetstream.replica.follower_events.Refused`, and why."""

    handle: int
    leader_epoch: LeaderEpoch
    """Of the fetch."""
    reason: FetchRefusal


@dataclass(slots=True)
class RepairAnswer:
    """The first of the batches that were asked for; none: there are none to be had here now."""

    handle: int
    base: Offset
    next: Offset
    body_bytes: int
    body: bytes = b""
    """As that of a `BatchesMessage`."""


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to `Ping`."""


Question = FetchMessage | RepairMessage
FollowerMessage = Declare | Question | Ping
Answer = BatchesMessage | DivergingMessage | StartOverMessage | RefusedMessage
LeaderMessage = Answer | RepairAnswer | Pong
WireMessage = FollowerMessage | LeaderMessage

# --- the bytes ------------------------------------------------------------------------------------------

_FRAME: Final = struct.Struct("<II")
_TEXT: Final = struct.Struct("<H")
_EPOCH: Final = struct.Struct("<QQ")
_NOTE: Final = struct.Struct("<I")

_KINDS: Final[dict[int, type[WireMessage]]] = {
    1: Declare,
    2: FetchMessage,
    3: Ping,
    4: BatchesMessage,
    5: DivergingMessage,
    6: StartOverMessage,
    7: RefusedMessage,
    8: Pong,
    9: RepairMessage,
    10: RepairAnswer,
}
_KIND_OF: Final = {message: number for number, message in _KINDS.items()}
_REASONS: Final = dict(enumerate(FetchRefusal, 1))
_REASON_OF: Final = {reason: number for number, reason in _REASONS.items()}
_ELSEWHERE: Final = frozenset(("name", "incarnation", "epochs", "body", "note", "reason"))
_NAMES: Final = {
    kind: tuple(field.name for field in fields(kind) if field.name not in _ELSEWHERE)
    for kind in _KINDS.values()
}
_CODES: Final = {"handle": "I", "body_bytes": "I", "asks": "?"}
_NUMBERS: Final = {
    kind: struct.Struct("<B" + "".join(_CODES.get(name, "Q") for name in names))
    for kind, names in _NAMES.items()
}

assert BODY_BYTES_MAX < 2**32, "the length of a body is a u32"
assert STREAM_NAME_CHARS_MAX < 2**16, "the length of a name is a u16"


def encode(message: WireMessage, handle: int | None = None) -> bytes:
    """Return the bytes of ``message``, all but its body, which is to be sent after them.

    Args:
        message: has a handle if one is given.
        handle: in place of the message's own.
    """
    kind = type(message)
    numbers = [getattr(message, name) for name in _NAMES[kind]]
    if handle is not None:
        numbers[0] = handle
    parts = [_NUMBERS[kind].pack(_KIND_OF[kind], *numbers)]
    match message:
        case Declare(name=name, incarnation=incarnation):
            parts += (_text(name), _text(incarnation))
        case BatchesMessage(epochs=epochs, body_bytes=body_bytes, note=note):
            assert body_bytes <= BODY_BYTES_MAX, f"a body of {body_bytes} bytes"
            parts += (_NOTE.pack(len(note)), note)
            parts += (_EPOCH.pack(*begins) for begins in epochs)
        case RepairAnswer(body_bytes=body_bytes):
            assert body_bytes <= BODY_BYTES_MAX, f"a body of {body_bytes} bytes"
        case StartOverMessage(note=note):
            parts += (_NOTE.pack(len(note)), note)
        case RefusedMessage(reason=reason):
            parts.append(bytes((_REASON_OF[reason],)))
        case _:
            pass
    header = b"".join(parts)
    assert len(header) <= HEADER_BYTES_MAX, f"a header of {len(header)} bytes"
    return _FRAME.pack(len(header), crc32c(header)) + header


class WireReader:
    """Puts the messages of one connection together from whatever pieces arrive, each byte copied once."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._missing = _FRAME.size
        """Bytes of the present part that have not arrived: a frame's two numbers, a header, or a body."""
        self._checksum: int | None = None
        """Of the header that is on its way."""
        self._headed: BatchesMessage | RepairAnswer | None = None
        """What the body that is on its way belongs to."""

    def feed(self, data: bytes) -> Iterator[WireMessage]:
        """Take in what has arrived; yield the messages that are complete now. To be exhausted.

        Raises:
            RemoteProtocolError: a header is damaged, or is no message; the reader is of no more use.
        """
        position = 0
        while len(data) - position >= self._missing:
            end = position + self._missing
            self._pieces.append(data[position:end])
            part, position = b"".join(self._pieces), end
            self._pieces.clear()
            message = self._take(part)
            if message is not None:
                yield message
        if position < len(data):
            self._pieces.append(data[position:])
            self._missing -= len(data) - position

    def _take(self, part: bytes) -> WireMessage | None:
        """Take a part that is complete in, and say what the next one is; return what it completes."""
        if self._headed is not None:
            message: WireMessage = self._headed
            self._headed.body = part
        elif self._checksum is None:
            length, self._checksum = _FRAME.unpack(part)
            if length > HEADER_BYTES_MAX:
                raise RemoteProtocolError(f"a header of {length} bytes")
            self._missing = length
            return None
        else:
            if crc32c(part) != self._checksum:
                raise RemoteProtocolError("a damaged header")
            message = _decode(part)
            if isinstance(message, BatchesMessage | RepairAnswer) and message.body_bytes:
                self._headed, self._missing = message, message.body_bytes
                return None
        self._headed = self._checksum = None
        self._missing = _FRAME.size
        return message


def _decode(header: bytes) -> WireMessage:
    kind = _KINDS.get(header[0]) if header else None
    if kind is None:
        raise RemoteProtocolError("a message of no known kind")
    try:
        _, *numbers = _NUMBERS[kind].unpack_from(header)
        rest = _rest(kind, header[_NUMBERS[kind].size :])
    except (struct.error, LookupError, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"a {kind.__name__} makes no sense: {error}") from error
    # Its numbers are all that most messages have, in the order of their fields.
    message = kind(**dict(zip(_NAMES[kind], numbers, strict=True)), **rest) if rest else kind(*numbers)
    if isinstance(message, BatchesMessage | RepairAnswer):
        _check(message)
    return message


def _check(message: BatchesMessage | RepairAnswer) -> None:
    """Refuse what no leader sends; whether the batches follow a log is for its machine to judge."""
    if message.body_bytes > BODY_BYTES_MAX:
        raise RemoteProtocolError(f"a body of {message.body_bytes} bytes")
    if message.next < message.base or (message.next > message.base) != (message.body_bytes > 0):
        span = f"from {message.base} to {message.next}"
        raise RemoteProtocolError(f"batches {span} in {message.body_bytes} bytes")


def _rest(kind: type[WireMessage], data: bytes) -> dict[str, Any]:
    """Return what follows the numbers, by the name of its field."""
    rest: dict[str, Any] = {}
    if kind is Declare:
        rest["name"], data = _cut_text(data)
        rest["incarnation"], data = _cut_text(data)
    elif kind in (BatchesMessage, StartOverMessage):
        (length,) = _NOTE.unpack_from(data)
        rest["note"], data = data[_NOTE.size : _NOTE.size + length], data[_NOTE.size + length :]
        if len(rest["note"]) < length:
            raise IndexError(f"{length} bytes wanted, {len(rest['note'])} there")
        if kind is BatchesMessage:
            return {**rest, "epochs": tuple(_EPOCH.iter_unpack(data))}
    elif kind is RefusedMessage:
        rest["reason"], data = _REASONS[data[0]], data[1:]
    if data:
        raise IndexError(f"{len(data)} bytes too many")
    return rest


def _text(text: str) -> bytes:
    data = text.encode()
    return _TEXT.pack(len(data)) + data


def _cut_text(data: bytes) -> tuple[str, bytes]:
    """Return a text and what follows it."""
    (length,) = _TEXT.unpack_from(data)
    end = _TEXT.size + length
    if end > len(data):
        raise IndexError(f"{length} bytes wanted, {len(data) - _TEXT.size} left")
    return data[_TEXT.size : end].decode(), data[end:]
