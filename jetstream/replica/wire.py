"""The messages between followers and leaders, and their bytes.

One connection carries all streams of which one node follows the other. The follower's end declares each under
a handle before it first speaks of it; the handle stands beside the message. All numbers are little-endian:

    offset size field
    0      4    length of the header, u32: what follows the checksum, without the body
    4      4    CRC32C of the header
    8      1    kind
    9      -    the handle, u32 (not of `Ping` and `Pong`), and the kind's numbers in the order of its fields:
                body_bytes u32, asks one byte, others u64
    -      -    `Declare`: length u16 and UTF-8 bytes of the name, then of the incarnation
    -      -    `BatchesMessage` and `StartOverMessage`: length u32 and bytes of the note
    -      -    `BatchesMessage`: its epochs up to the end, each: epoch u64, first offset u64
    -      -    `RefusedMessage`: the reason, one byte

The body of a `BatchesMessage` or a `RepairAnswer` follows its header: batches as they are in the log. It is
not under the checksum, as each batch has its own; the appending replica verifies those.

`encode` and `WireReader` are each other's inverse. Damaged bytes, and bytes that are no message, are an
error: nothing that follows on that connection can be told apart any more.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import StrEnum
from itertools import starmap
from operator import attrgetter
from typing import Any, Final

from crc32c import crc32c

from envelope.errors import RemoteProtocolError
from envelope.limits import MIB, RESPONSE_BODY_BYTES_MAX, STREAM_NAME_CHARS_MAX
from envelope.types import NO_OFFSET, Incarnation, LeaderEpoch, NodeEpoch, Offset, StreamName
from envelope.values import value

HEADER_BYTES_MAX: Final = 16 * MIB
"""A longer one is no message: room for a note, and the epochs of a body in which every batch has its own."""

BODY_BYTES_MAX: Final = RESPONSE_BODY_BYTES_MAX
"""Of one answer: as much as a reader is sent at once, so that the largest batch fits."""

# --- from the follower's end ----------------------------------------------------------------------------


@value(frozen=True, slots=True)
class Declare:
    """From now on the message's handle stands for this life of that stream, on this connection."""

    name: StreamName
    incarnation: Incarnation


@value(frozen=True, slots=True)
class FetchMessage:
    """Ask for what comes after the follower's log, and acknowledge what it has on disk."""

    node_epoch: NodeEpoch
    """Of the follower's process."""
    leader_epoch: LeaderEpoch
    """The reign that it follows."""
    last_epoch: LeaderEpoch
    """Of its history; `NO_EPOCH` if it is empty."""
    log_end: Offset
    """After all appends that were asked for, even if they are not written yet."""
    synced_end: Offset
    """The acknowledgement: durable at the follower."""
    high_watermark: Offset
    """As far as the follower knows."""
    asks: bool
    """False: it only acknowledges; the answer to what was asked before about this log is still awaited."""


@value(frozen=True, slots=True)
class RepairMessage:
    """Ask for the batches from the one with ``offset`` on, none of them beyond ``end``.

    The asking node has had them, and its own are damaged; any replica answers.
    """

    offset: Offset
    end: Offset


@value(frozen=True, slots=True)
class Ping:
    """Ask for a `Pong`; without a handle."""


# --- from the leader's end: answers to fetches repeat the fetch's ``last_epoch`` and log end -------------


@dataclass(slots=True)
class BatchesMessage:
    """The leader's batches after the log that the fetch described; perhaps none."""

    leader_epoch: LeaderEpoch
    last_epoch: LeaderEpoch
    base: Offset
    """The fetch's ``log_end``."""
    next: Offset
    """Offset after the last batch; the base if there is none."""
    high_watermark: Offset
    log_start_offset: Offset = NO_OFFSET
    """Where the leader's log begins."""
    purged_end: Offset = NO_OFFSET
    """Tombstones below may be missing in the leader's log."""
    body_bytes: int = 0
    epochs: tuple[tuple[LeaderEpoch, Offset], ...] = ()
    """Of the batches, in order, and from where on each was written under it; the first begins at the base.
    Empty if there is no batch."""
    note: bytes = b""
    """The leader's publisher state, as in its file, for a follower that is about to join the ISR: it covers
    committed records that may be gone. Empty: nothing, or not now."""
    body: bytes = b""
    """As received, not verified; empty at the sender, which sends it from its files."""


@value(frozen=True, slots=True)
class DivergingMessage:
    """The log that the fetch described is no beginning of the leader's: see `jetstream.replica.reconcile`."""

    leader_epoch: LeaderEpoch
    last_epoch: LeaderEpoch
    log_end: Offset
    epoch: LeaderEpoch
    """The largest that the leader knows and that is not above ``last_epoch``."""
    end: Offset
    """Where it ends in the leader's log."""


@value(frozen=True, slots=True)
class StartOverMessage:
    """The log that the fetch described has nothing to build on: begin anew at the leader's start."""

    leader_epoch: LeaderEpoch
    last_epoch: LeaderEpoch
    log_end: Offset
    log_start_offset: Offset
    """Where the leader's log begins."""
    note: bytes = b""
    """As that of a `BatchesMessage`."""


class FetchRefusal(StrEnum):
    """Why a fetch was refused; it has changed nothing."""

    OTHER_LEADER_EPOCH = "other_leader_epoch"
    """It is for another reign than the leader's."""
    OLD_NODE_EPOCH = "old_node_epoch"
    """The follower's process has been replaced by a newer one."""
    UNKNOWN_REPLICA = "unknown_replica"
    """The stream has no such replica."""
    DEPOSED = "deposed"
    """This reign is over."""
    NOT_LEADING = "not_leading"
    """Said by a node without a leader of the stream: it does not lead, or not yet."""
    NO_LEASE = "no_lease"
    """The logs part, and the leader may not say where until its lease is valid again."""
    CANNOT_READ = "cannot_read"
    """The leader has what was asked for, and fails to read it."""


@value(frozen=True, slots=True)
class RefusedMessage:
    """The fetch is refused."""

    leader_epoch: LeaderEpoch
    """Of the fetch: a follower ignores a refusal in another reign than its own."""
    reason: FetchRefusal


@dataclass(slots=True)
class RepairAnswer:
    """The first of the batches that were asked for; none: there are none to be had here now."""

    base: Offset
    next: Offset
    body_bytes: int = 0
    body: bytes = b""
    """As that of a `BatchesMessage`."""


@value(frozen=True, slots=True)
class Pong:
    """The answer to `Ping`; without a handle."""


Question = FetchMessage | RepairMessage
Answer = BatchesMessage | DivergingMessage | StartOverMessage | RefusedMessage
WireMessage = Declare | Question | Ping | Answer | RepairAnswer | Pong

# --- the bytes ------------------------------------------------------------------------------------------

_FRAME: Final = struct.Struct("<II")
_TEXT: Final = struct.Struct("<H")
_EPOCH: Final = struct.Struct("<QQ")

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
_ELSEWHERE: Final = frozenset(("name", "incarnation", "epochs", "note", "body", "reason"))
_NAMES: Final = {
    kind: tuple(field.name for field in fields(kind) if field.name not in _ELSEWHERE)
    for kind in _KINDS.values()
}
_CODES: Final = {"body_bytes": "I", "asks": "?"}
_WITHOUT_HANDLE: Final = (Ping, Pong)
_WITH_NOTE: Final = (BatchesMessage, StartOverMessage)
_WITH_REST: Final = (Declare, *_WITH_NOTE, RefusedMessage)
"""What has more than numbers in its header."""
_NUMBERS: Final = {
    kind: struct.Struct(
        ("<B" if kind in _WITHOUT_HANDLE else "<BI")
        + "".join(_CODES.get(name, "Q") for name in names)
        + ("I" if kind in _WITH_NOTE else "")
    )
    for kind, names in _NAMES.items()
}
"""With the length of the note, where there is one."""
_NUMBERS_OF: Final[dict[type[WireMessage], Callable[[Any], tuple[Any, ...]]]] = {
    kind: attrgetter(*names)
    for kind, names in _NAMES.items()
    if len(names) > 1  # else it returns no tuple
}

assert BODY_BYTES_MAX < 2**32, "the length of a body is a u32"
assert STREAM_NAME_CHARS_MAX < 2**16, "the length of a name is a u16"


def encode(message: WireMessage, handle: int | None = None) -> bytes:
    """Return the bytes of ``message`` under ``handle``, all but its body, which is to be sent after them."""
    kind = type(message)
    numbers = _NUMBERS_OF[kind](message) if kind in _NUMBERS_OF else _few_numbers(message)
    if handle is not None:
        numbers = (handle, *numbers)
    number, pack = _KIND_OF[kind], _NUMBERS[kind].pack
    match message:
        case BatchesMessage(epochs=epochs, body_bytes=body_bytes, note=note):
            assert body_bytes <= BODY_BYTES_MAX, f"a body of {body_bytes} bytes"
            header = b"".join((pack(number, *numbers, len(note)), note, *starmap(_EPOCH.pack, epochs)))
        case Declare(name=name, incarnation=incarnation):
            header = pack(number, *numbers) + _text(name) + _text(incarnation)
        case RepairAnswer(body_bytes=body_bytes):
            assert body_bytes <= BODY_BYTES_MAX, f"a body of {body_bytes} bytes"
            header = pack(number, *numbers)
        case StartOverMessage(note=note):
            header = pack(number, *numbers, len(note)) + note
        case RefusedMessage(reason=reason):
            header = pack(number, *numbers) + bytes((_REASON_OF[reason],))
        case _:
            header = pack(number, *numbers)
    length = len(header)
    assert length <= HEADER_BYTES_MAX, f"a header of {length} bytes"
    return _FRAME.pack(length, crc32c(header)) + header


def _few_numbers(message: WireMessage) -> tuple[Any, ...]:
    return tuple(getattr(message, name) for name in _NAMES[type(message)])


_NEVER: Final = 1 << 62
"""More bytes than arrive."""


class WireReader:
    """Puts the messages of one connection together from whatever pieces arrive, each byte copied once."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._missing = _FRAME.size
        """Bytes of the present part that have not arrived: a frame's two numbers, a header, or a body."""
        self._checksum: int | None = None
        """Of the header that is on its way."""
        self._headed: tuple[int, BatchesMessage | RepairAnswer] | None = None
        """What the body that is on its way belongs to."""

    def feed(self, data: bytes, received: Callable[[int, WireMessage], None]) -> None:
        """Read what has arrived; call ``received`` with each message that is complete now, after its handle.

        The handle of a message without one is 0.

        Raises:
            RemoteProtocolError: a header is damaged, or is no message; the reader is of no more use. Or as
                ``received``.
        """
        position, length = 0, len(data)
        while length - position >= self._missing:
            end = position + self._missing
            part = data[position:end]
            position = end
            if self._pieces:
                part = b"".join((*self._pieces, part))
                self._pieces.clear()
            if self._headed is not None:
                (handle, message), self._headed = self._headed, None
                message.body = part
                self._missing = _FRAME.size
                received(handle, message)
            elif self._checksum is None:
                self._missing, self._checksum = _FRAME.unpack(part)
                if self._missing > HEADER_BYTES_MAX:
                    raise RemoteProtocolError(f"a header of {self._missing} bytes")
            else:
                if crc32c(part) != self._checksum:
                    raise RemoteProtocolError("a damaged header")
                self._checksum = None
                handle, decoded = _decode(part)
                if isinstance(decoded, BatchesMessage | RepairAnswer) and decoded.body_bytes:
                    self._headed, self._missing = (handle, decoded), decoded.body_bytes
                else:
                    self._missing = _FRAME.size
                    received(handle, decoded)
        if position < length:
            self._pieces.append(data[position:])
            self._missing -= length - position

    def end(self) -> None:
        """Hand on nothing more, also not of what has arrived."""
        self._missing = _NEVER


def _decode(header: bytes) -> tuple[int, WireMessage]:
    kind = _KINDS[header[0]] if header and header[0] in _KINDS else None
    if kind is None:
        raise RemoteProtocolError("a message of no known kind")
    layout = _NUMBERS[kind]
    rest: dict[str, Any] = {}
    try:
        if kind in _WITH_REST:
            numbers = layout.unpack_from(header)
            rest = _rest(kind, header[layout.size :], numbers[-1])
        else:
            numbers = layout.unpack(header)
    except (struct.error, LookupError, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"a {kind.__name__} makes no sense: {error}") from error
    if kind in _WITHOUT_HANDLE:
        return 0, kind(*numbers[1:])
    message = kind(*(numbers[2:-1] if kind in _WITH_NOTE else numbers[2:]), **rest)  # its first fields
    match message:
        case BatchesMessage(base=base, next=end, body_bytes=size) | RepairAnswer(base, end, size):
            # What no leader sends; whether the batches follow a log is for its machine to judge.
            if size > BODY_BYTES_MAX:
                raise RemoteProtocolError(f"a body of {size} bytes")
            if end < base or (end > base) != (size > 0):
                raise RemoteProtocolError(f"batches from {base} to {end} in {size} bytes")
        case _:
            pass
    return numbers[1], message


def _rest(kind: type[WireMessage], data: bytes, note_bytes: int) -> dict[str, Any]:
    """Return what follows the numbers, by the name of its field; a note has ``note_bytes``."""
    rest: dict[str, Any] = {}
    if kind in _WITH_NOTE:
        note, data = data[:note_bytes], data[note_bytes:]
        if len(note) < note_bytes:
            raise IndexError(f"{note_bytes} bytes wanted, {len(note)} there")
        if kind is BatchesMessage:
            return {"note": note, "epochs": tuple(_EPOCH.iter_unpack(data))}
        rest["note"] = note
    elif kind is Declare:
        rest["name"], data = _cut_text(data)
        rest["incarnation"], data = _cut_text(data)
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
