"""The bytes of a message between two voters, or a voter and an observer.

Sender and target are agreed once for a connection and not repeated. All numbers are little-endian:

    offset size field
    0      4    length of what follows the checksum, u32
    4      4    CRC32C of it
    8      1    kind
    9      8    term, u64
    17     -    the kind's other numbers in the order of its fields: u64 each, a yes or no one byte
    -      -    the entries up to the end, each: index u64, term u64, length u32, bytes
    -      -    or a snapshot up to the end: index u64, term u64, bytes; before it, if 128 is added to the
                kind, the configuration that is in force after it: length u32 and the entry's bytes

The kinds from 12 to 21 are no messages of Raft's and have no term: forwarded payloads
(`Forwarded`), each length u32, bytes; and the messages between nodes and the metadata leader
(`metadata.raft.messages.node_messages`), where a node that is named, in UTF-8, takes what is left. The kinds
from 18 to 21 are between voters and observers (`metadata.raft.messages.observer_messages`), with entries or a
snapshot as above.

`encode` and `MessageReader` are each other's inverse. Bytes that are damaged, or are no message, are an
error: nothing that follows on that connection can be told apart any more.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Final

from crc32c import crc32c

from envelope.errors import CorruptDataError, RemoteProtocolError
from envelope.limits import MIB
from envelope.types import LogIndex, NodeId, Term
from metadata.limits import ENTRY_BYTES_MAX, SNAPSHOT_BYTES_MAX
from metadata.raft.configuration import configuration_in, decode_configuration, encode_configuration
from metadata.raft.messages.node_messages import (
    LeaseAsked,
    LeaseGranted,
    LeaseRefused,
    NodeMessage,
    NodeUnheardReport,
    StopAnnounced,
)
from metadata.raft.messages.observer_messages import (
    CommittedEntries,
    CommittedState,
    Observe,
    ObserverMessage,
    VoterStatus,
)
from metadata.raft.messages.voter_messages import (
    AppendRejection,
    AppendRequest,
    AppendResponse,
    ElectNow,
    Heartbeat,
    Message,
    PreVoteRequest,
    PreVoteResponse,
    RecoveryRequest,
    RecoveryResponse,
    SnapshotRequest,
    VoteRequest,
    VoteResponse,
    VoterHeartbeatResponse,
)
from metadata.raft.state import Entry, Snapshot

MESSAGE_BYTES_MAX: Final = SNAPSHOT_BYTES_MAX + MIB
"""A longer one is no message."""


@dataclass(frozen=True, slots=True)
class Forwarded:
    """Propose this if you lead. There is no answer: an applied payload shows in the log, on every voter."""

    source: NodeId
    target: NodeId
    payloads: tuple[bytes, ...]


Sent = Message | Forwarded | NodeMessage | ObserverMessage

_FRAME: Final = struct.Struct("<II")
_ENTRY: Final = struct.Struct("<QQI")
_SNAPSHOT: Final = struct.Struct("<QQ")
_LENGTH: Final = struct.Struct("<I")
_WITH_CONFIGURATION: Final = 128

_KINDS: Final[dict[int, type[Sent]]] = {
    1: PreVoteRequest,
    2: PreVoteResponse,
    3: VoteRequest,
    4: VoteResponse,
    5: AppendRequest,
    6: AppendResponse,
    7: AppendRejection,
    8: SnapshotRequest,
    9: Heartbeat,
    10: VoterHeartbeatResponse,
    11: ElectNow,
    12: Forwarded,
    13: LeaseAsked,
    14: LeaseGranted,
    15: LeaseRefused,
    16: NodeUnheardReport,
    17: StopAnnounced,
    18: Observe,
    19: CommittedEntries,
    20: CommittedState,
    21: VoterStatus,
    22: RecoveryRequest,
    23: RecoveryResponse,
}
_KIND_OF: Final = {message: number for number, message in _KINDS.items()}
_ELSEWHERE: Final = frozenset(("source", "target", "entries", "snapshot", "payloads", "node"))
_NAMES: Final = {
    kind: tuple(field.name for field in fields(kind) if field.name not in _ELSEWHERE)
    for kind in _KINDS.values()
}
_NUMBERS: Final = {
    kind: struct.Struct(
        "<B"
        + "".join(
            "?" if field.type is bool else "Q" for field in fields(kind) if field.name not in _ELSEWHERE
        )
    )
    for kind in _KINDS.values()
}


def encode(message: Sent) -> bytes:
    """Return the frame of ``message``, all but its source and target."""
    kind = type(message)
    numbers = [getattr(message, name) for name in _NAMES[kind]]
    parts = [_NUMBERS[kind].pack(_KIND_OF[kind], *numbers)]
    match message:
        case AppendRequest(entries=entries) | CommittedEntries(entries=entries):
            for entry in entries:
                parts += (_ENTRY.pack(entry.index, entry.term, len(entry.payload)), entry.payload)
        case SnapshotRequest(snapshot=snapshot) | CommittedState(snapshot=snapshot):
            parts += _snapshot_parts(snapshot)
            if snapshot.configuration is not None:
                parts[0] = bytes((parts[0][0] | _WITH_CONFIGURATION,)) + parts[0][1:]
        case Forwarded(payloads=payloads):
            for payload in payloads:
                parts += (_LENGTH.pack(len(payload)), payload)
        case NodeUnheardReport(node=node) | VoterStatus(node=node):
            parts.append(node.encode())
        case _:
            pass
    body = b"".join(parts)
    assert len(body) <= MESSAGE_BYTES_MAX, f"a message of {len(body)} bytes"
    return _FRAME.pack(len(body), crc32c(body)) + body


class MessageReader:
    """Puts the messages of one connection together from whatever pieces arrive."""

    def __init__(self, source: NodeId, target: NodeId, bytes_max: int = MESSAGE_BYTES_MAX) -> None:
        """Read the messages of ``source`` to ``target``; a frame above ``bytes_max`` is no message."""
        self._bytes_max = bytes_max
        self._source = source
        self._target = target
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Sent]:
        """Add bytes that have arrived; yield the messages that are complete now.

        Raises:
            RemoteProtocolError: a frame is damaged, or is no message; the reader is of no more use.
        """
        self._buffer += data
        while len(self._buffer) >= _FRAME.size:
            length, checksum = _FRAME.unpack_from(self._buffer)
            if length > self._bytes_max:
                raise RemoteProtocolError(f"a message of {length} bytes from {self._source}")
            end = _FRAME.size + length
            if len(self._buffer) < end:
                return
            body = bytes(memoryview(self._buffer)[_FRAME.size : end])
            del self._buffer[:end]
            if crc32c(body) != checksum:
                raise RemoteProtocolError(f"a damaged message from {self._source}")
            yield self._decoded(body)

    def _decoded(self, body: bytes) -> Sent:
        is_configured = bool(body) and body[0] & _WITH_CONFIGURATION != 0
        kind = _KINDS.get(body[0] & ~_WITH_CONFIGURATION) if body else None
        if kind is None or (is_configured and kind not in (SnapshotRequest, CommittedState)):
            raise RemoteProtocolError(f"a message of no known kind from {self._source}")
        try:
            _, *numbers = _NUMBERS[kind].unpack_from(body)
            rest = _rest(kind, body[_NUMBERS[kind].size :], is_configured=is_configured)
        except (struct.error, IndexError, UnicodeDecodeError, CorruptDataError) as error:
            raise RemoteProtocolError(
                f"a {kind.__name__} from {self._source} makes no sense: {error}"
            ) from error
        numbered = dict(zip(_NAMES[kind], numbers, strict=True))
        message = kind(source=self._source, target=self._target, **numbered, **rest)
        if isinstance(message, AppendRequest | CommittedEntries) and not _follow_each_other(message):
            raise RemoteProtocolError(f"entries from {self._source} do not follow each other")
        if isinstance(message, SnapshotRequest) and message.snapshot.term > message.term:
            raise RemoteProtocolError(f"a snapshot from {self._source} is of a later term than its leader's")
        return message


def _follow_each_other(message: AppendRequest | CommittedEntries) -> bool:
    """Return whether a log can have such entries: without a gap, under terms that never decrease."""
    index, term = message.previous_index, message.previous_term
    for entry in message.entries:
        if entry.index != index + 1 or entry.term < term:
            return False
        index, term = entry.index, entry.term
    return not isinstance(message, AppendRequest) or not message.entries or term <= message.term


def _rest(kind: type[Sent], data: bytes, *, is_configured: bool) -> dict[str, Any]:
    """Return what follows the numbers, by the name of its field."""
    if kind in (AppendRequest, CommittedEntries):
        return {"entries": tuple(_entries(data))}
    if kind in (SnapshotRequest, CommittedState):
        return {"snapshot": _snapshot(data, is_configured=is_configured)}
    if kind is Forwarded:
        return {"payloads": tuple(_payloads(data))}
    if kind in (NodeUnheardReport, VoterStatus):
        return {"node": NodeId(data.decode())}
    if data:
        raise IndexError(f"{len(data)} bytes too many")
    return {}


def _snapshot_parts(snapshot: Snapshot) -> Iterator[bytes]:
    if snapshot.configuration is not None:
        configuration = encode_configuration(snapshot.configuration)
        yield from (_LENGTH.pack(len(configuration)), configuration)
    yield from (_SNAPSHOT.pack(snapshot.index, snapshot.term), snapshot.payload)


def _snapshot(data: bytes, *, is_configured: bool) -> Snapshot:
    position, configuration = 0, None
    if is_configured:
        (length,) = _LENGTH.unpack_from(data)
        position = _LENGTH.size + length
        configuration = decode_configuration(_cut(data, _LENGTH.size, length))
    index, term = _SNAPSHOT.unpack_from(data, position)
    return Snapshot(LogIndex(index), Term(term), data[position + _SNAPSHOT.size :], configuration)


def _entries(data: bytes) -> Iterator[Entry]:
    position = 0
    while position < len(data):
        index, term, length = _ENTRY.unpack_from(data, position)
        payload = _cut(data, position + _ENTRY.size, length)
        position += _ENTRY.size + length
        configuration_in(payload)  # raises if it is one that makes no sense
        yield Entry(LogIndex(index), Term(term), payload)


def _payloads(data: bytes) -> Iterator[bytes]:
    position = 0
    while position < len(data):
        (length,) = _LENGTH.unpack_from(data, position)
        yield _cut(data, position + _LENGTH.size, length)
        position += _LENGTH.size + length


def _cut(data: bytes, start: int, length: int) -> bytes:
    if length > ENTRY_BYTES_MAX:
        raise IndexError(f"an entry of {length} bytes")
    cut = data[start : start + length]
    if len(cut) != length:
        raise IndexError(f"{length} bytes wanted, {len(cut)} left")
    return cut
