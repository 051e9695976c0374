"""The bytes of the metadata log: checksummed frames, one per append.

A log file is one *generation*: its first frame holds a snapshot, the hard state and the entries kept
behind the snapshot; every further frame is one append, written with one write and one sync. A frame:

    offset size field
    0      4    magic F7 4A 53 4D
    4      4    CRC32C of everything behind it: bytes 8 to 32 and the payload
    8      8    generation, u64
    16     8    position of this frame in the file, u64: all bytes before it were durable when it was written
    24     4    length of the payload, u32
    28     1    flags: 1 a hard state, 2 a snapshot, 4 a hard state with a recovery term,
                8 a snapshot with a configuration
    29     3    zero
    32     -    payload

and its payload, each part only if flagged, all numbers little-endian:

    hard state   term u64, vote: length u16 and UTF-8 (length FFFF: no vote);
                 with flag 4, recovery term u64
    snapshot     index u64, term u64, length u32, bytes;
                 with flag 8, the configuration in force after it: length u32 and the entry's bytes
    entries      count u32, then each: index u64, term u64, length u32, bytes

Generation and position make a frame valid at one place only, so that bytes that landed elsewhere, or
survived from an earlier file, are never taken for a frame. The magic's first byte occurs in no UTF-8
text, and commands and snapshots are JSON behind binary headers with checksums of their own.
"""

import struct
from dataclasses import dataclass, replace
from typing import Final

from crc32c import crc32c

from envelope.errors import CorruptDataError
from envelope.types import LogIndex, NodeId, Term
from metadata.raft.configuration import decode_configuration, encode_configuration
from metadata.raft.state import Entry, HardState, Snapshot

MAGIC: Final = b"\xf7JSM"
_CHECKED: Final = struct.Struct("<QQIB3x")
_CRC: Final = struct.Struct("<I")
_CRC_POSITION: Final = len(MAGIC)
_CHECKED_POSITION: Final = len(MAGIC) + _CRC.size
FRAME_HEADER_BYTES: Final = _CHECKED_POSITION + _CHECKED.size
assert FRAME_HEADER_BYTES == 32, "the table above"

_FLAG_HARD_STATE: Final = 1
_FLAG_SNAPSHOT: Final = 2
_FLAG_RECOVERY: Final = 4
_FLAG_CONFIGURATION: Final = 8
_NO_VOTE: Final = 0xFFFF

_TERM_VOTE: Final = struct.Struct("<QH")
_RECOVERY_TERM: Final = struct.Struct("<Q")
_NUMBERED: Final = struct.Struct("<QQI")
_COUNT: Final = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class FrameContents:
    """The contents of one frame."""

    entries: tuple[Entry, ...]
    hard_state: HardState | None = None
    snapshot: Snapshot | None = None


@dataclass(frozen=True, slots=True)
class Scan:
    """The contents of a log file up to ``end``; bytes from there on are the torn last append."""

    frames: tuple[FrameContents, ...]
    end: int


def encode_frame(contents: FrameContents, generation: int, position: int) -> bytes:
    """Return the frame that writes ``contents`` at ``position``."""
    flags, parts = 0, []
    if contents.hard_state is not None:
        flags |= _FLAG_HARD_STATE
        parts.append(_encode_hard_state(contents.hard_state))
        if contents.hard_state.recovery_term:
            flags |= _FLAG_RECOVERY
            parts.append(_RECOVERY_TERM.pack(contents.hard_state.recovery_term))
    if contents.snapshot is not None:
        flags |= _FLAG_SNAPSHOT
        snapshot = contents.snapshot
        parts.append(_encode_numbered(snapshot.index, snapshot.term, snapshot.payload))
        if snapshot.configuration is not None:
            flags |= _FLAG_CONFIGURATION
            configuration = encode_configuration(snapshot.configuration)
            parts += (_COUNT.pack(len(configuration)), configuration)
    parts.append(_COUNT.pack(len(contents.entries)))
    parts.extend(_encode_numbered(entry.index, entry.term, entry.payload) for entry in contents.entries)
    payload = b"".join(parts)
    checked = _CHECKED.pack(generation, position, len(payload), flags)
    return b"".join((MAGIC, _CRC.pack(_checksum(checked, payload)), checked, payload))


def scan(data: bytes, generation: int, synced_end: int) -> Scan:
    """Return what the file of ``generation`` holds.

    Args:
        data: the whole file.
        generation: the one in the file's name.
        synced_end: bytes that are known to have been durable; a lower bound.

    Raises:
        CorruptDataError: damage anywhere but in the last append: below ``synced_end``, in the first
            frame (it was durable before the file had its name), or before an intact later frame (which
            says that what precedes it was durable). It is never cut away.
    """
    frames: list[FrameContents] = []
    position = 0
    while position < len(data):
        frame = _read_frame(data, generation, position)
        if frame is None:
            break
        contents, position = frame
        frames.append(contents)
    if not frames or position < synced_end:
        raise CorruptDataError(
            f"metadata log {generation} is damaged at byte {position} of {len(data)}; "
            f"{synced_end} bytes had been synced",
            position=position,
        )
    later = _next_frame(data, generation, position)
    if later is not None:
        raise CorruptDataError(
            f"metadata log {generation} is damaged at byte {position}, before an intact frame at {later}",
            position=position,
        )
    if frames[0].snapshot is None or frames[0].hard_state is None:
        raise CorruptDataError(f"metadata log {generation} does not begin with a snapshot", position=0)
    return Scan(tuple(frames), position)


def _read_frame(data: bytes, generation: int, position: int) -> tuple[FrameContents, int] | None:
    """Return an intact frame's contents and end, or None; raises only if its checksum lies."""
    header_end = position + FRAME_HEADER_BYTES
    if len(data) < header_end or not data.startswith(MAGIC, position):
        return None
    (crc,) = _CRC.unpack_from(data, position + _CRC_POSITION)
    checked = data[position + _CHECKED_POSITION : header_end]
    found_generation, found_position, length, flags = _CHECKED.unpack(checked)
    if (found_generation, found_position) != (generation, position) or len(data) < header_end + length:
        return None
    payload = data[header_end : header_end + length]
    if crc != _checksum(checked, payload):
        return None
    try:
        return _decode_payload(payload, flags), header_end + length
    except (struct.error, UnicodeDecodeError, IndexError, CorruptDataError) as error:
        raise CorruptDataError(
            f"metadata log {generation}: frame at byte {position} has a checksum but no sense: {error}",
            position=position,
        ) from error


def _next_frame(data: bytes, generation: int, start: int) -> int | None:
    """Return the position of the first intact frame behind ``start``."""
    position = data.find(MAGIC, start + 1)
    while position >= 0:
        if _read_frame(data, generation, position) is not None:
            return position
        position = data.find(MAGIC, position + 1)
    return None


def _decode_payload(payload: bytes, flags: int) -> FrameContents:
    position = 0
    hard_state, snapshot = None, None
    if flags & _FLAG_HARD_STATE:
        hard_state, position = _decode_hard_state(payload)
        if flags & _FLAG_RECOVERY:
            (recovery_term,) = _RECOVERY_TERM.unpack_from(payload, position)
            hard_state = replace(hard_state, recovery_term=Term(recovery_term))
            position += _RECOVERY_TERM.size
    if flags & _FLAG_SNAPSHOT:
        (index, term, body), position = _decode_numbered(payload, position)
        snapshot = Snapshot(LogIndex(index), Term(term), body)
        if flags & _FLAG_CONFIGURATION:
            (length,) = _COUNT.unpack_from(payload, position)
            position += _COUNT.size + length
            snapshot = replace(
                snapshot, configuration=decode_configuration(payload[position - length : position])
            )
    (count,) = _COUNT.unpack_from(payload, position)
    position += _COUNT.size
    entries = []
    for _ in range(count):
        (index, term, body), position = _decode_numbered(payload, position)
        entries.append(Entry(LogIndex(index), Term(term), body))
    if position != len(payload):
        raise IndexError(f"{len(payload) - position} bytes behind the last entry")
    return FrameContents(tuple(entries), hard_state, snapshot)


def _encode_hard_state(hard_state: HardState) -> bytes:
    if hard_state.vote is None:
        return _TERM_VOTE.pack(hard_state.term, _NO_VOTE)
    vote = hard_state.vote.encode()
    assert len(vote) < _NO_VOTE, f"node id of {len(vote)} bytes"
    return _TERM_VOTE.pack(hard_state.term, len(vote)) + vote


def _decode_hard_state(payload: bytes) -> tuple[HardState, int]:
    term, length = _TERM_VOTE.unpack_from(payload)
    if length == _NO_VOTE:
        return HardState(Term(term), None), _TERM_VOTE.size
    end = _TERM_VOTE.size + length
    vote = payload[_TERM_VOTE.size : end]
    if len(vote) != length:
        raise IndexError("a vote longer than its frame")
    return HardState(Term(term), NodeId(vote.decode())), end


def _encode_numbered(index: LogIndex, term: Term, body: bytes) -> bytes:
    return _NUMBERED.pack(index, term, len(body)) + body


def _decode_numbered(payload: bytes, position: int) -> tuple[tuple[int, int, bytes], int]:
    index, term, length = _NUMBERED.unpack_from(payload, position)
    start = position + _NUMBERED.size
    body = payload[start : start + length]
    if len(body) != length:
        raise IndexError("an entry longer than its frame")
    return (index, term, body), start + length


def _checksum(checked: bytes, payload: bytes) -> int:
    return crc32c(payload, crc32c(checked))
