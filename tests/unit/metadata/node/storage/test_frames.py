from dataclasses import replace

import pytest
from crc32c import crc32c

from envelope.errors import CorruptDataError
from envelope.types import LogIndex, NodeId, Term
from metadata.node.storage.frames import FRAME_HEADER_BYTES, MAGIC, FrameContents, encode_frame, scan
from metadata.raft.configuration import Configuration
from metadata.raft.state import Entry, HardState, Snapshot

FIRST = FrameContents(
    (Entry(LogIndex(4), Term(2), b"four"),),
    HardState(Term(3), NodeId("n1")),
    Snapshot(LogIndex(3), Term(2), b"three"),
)
SECOND = FrameContents((Entry(LogIndex(5), Term(3), b"five"), Entry(LogIndex(6), Term(3), b"")))
THIRD = FrameContents((), HardState(Term(4), None))


def log_of(*frames: FrameContents, generation: int = 7) -> bytes:
    data = b""
    for contents in frames:
        data += encode_frame(contents, generation, len(data))
    return data


def test_the_format_is_pinned() -> None:
    """Format 1: these bytes must be read for ever."""
    assert encode_frame(FIRST, 7, 0).hex() == (
        "f74a534d" + "65080374" + "0700000000000000" + "0000000000000000" + "41000000" + "03" + "000000"
        "0300000000000000" + "0200" + "6e31"
        "0300000000000000" + "0200000000000000" + "05000000" + "7468726565"
        "01000000"
        "0400000000000000" + "0200000000000000" + "04000000" + "666f7572"
    )


def test_the_format_of_a_snapshot_with_members_is_pinned() -> None:
    snapshot = Snapshot(LogIndex(3), Term(2), b"three", Configuration((NodeId("n1"),)))
    contents = FrameContents((), HardState(Term(3), None), snapshot)
    members = bytes(16) + b'{"voters":["n1"],"outgoing":[],"learners":[]}'
    encoded = encode_frame(contents, 7, 0)
    assert (encoded[28], encoded[32:]) == (
        11,
        bytes.fromhex("0300000000000000" + "ffff" + "0300000000000000" + "0200000000000000" + "05000000")
        + b"three"
        + bytes.fromhex("3d000000")
        + members
        + bytes(4),
    )
    assert scan(encoded, 7, 0).frames == (contents,)


def test_frames_read_back_in_order() -> None:
    data = log_of(FIRST, SECOND, THIRD)
    found = scan(data, 7, 0)
    assert found.frames == (FIRST, SECOND, THIRD)
    assert found.end == len(data)


def test_a_torn_last_frame_is_where_the_log_ends() -> None:
    whole = log_of(FIRST, SECOND)
    third = log_of(FIRST, SECOND, THIRD)
    for length in range(len(whole), len(third)):
        found = scan(third[:length], 7, len(whole))
        assert (found.frames, found.end) == ((FIRST, SECOND), len(whole))
    zeros = third[: len(whole)] + bytes(len(third) - len(whole))
    assert scan(zeros, 7, len(whole)).end == len(whole)


def test_damage_below_the_synced_end_is_corruption_even_at_the_tail() -> None:
    data = bytearray(log_of(FIRST, SECOND))
    for position in range(len(data)):
        data[position] ^= 0x10
        with pytest.raises(CorruptDataError):
            scan(bytes(data), 7, len(data))
        data[position] ^= 0x10
    with pytest.raises(CorruptDataError):
        scan(bytes(data[:-1]), 7, len(data))


def test_damage_before_an_intact_frame_is_corruption_without_any_mark() -> None:
    data = bytearray(log_of(FIRST, SECOND, THIRD))
    last = len(log_of(FIRST, SECOND))
    for position in range(last):
        data[position] ^= 0x01
        with pytest.raises(CorruptDataError):
            scan(bytes(data), 7, 0)
        data[position] ^= 0x01


def test_a_log_without_an_intact_first_frame_is_corruption() -> None:
    for data in (b"", b"x", bytes(1000), log_of(FIRST)[:-1]):
        with pytest.raises(CorruptDataError):
            scan(data, 7, 0)
    with pytest.raises(CorruptDataError, match="does not begin with a snapshot"):
        scan(log_of(SECOND), 7, 0)


def test_a_frame_is_valid_only_in_its_generation_and_at_its_position() -> None:
    stale = log_of(FIRST, SECOND, generation=6)
    with pytest.raises(CorruptDataError):
        scan(stale, 7, 0)
    first = log_of(FIRST)
    moved = first + log_of(FIRST, SECOND, THIRD)[len(log_of(FIRST, SECOND)) :]
    assert scan(moved, 7, 0).end == len(first), "a frame that lies elsewhere than it says is none"


def test_a_frame_that_has_a_checksum_but_no_sense_is_corruption() -> None:
    frame = bytearray(encode_frame(SECOND, 7, 0))
    frame[FRAME_HEADER_BYTES] = 9  # a count that the payload does not have
    frame[4:8] = crc32c(frame[8:]).to_bytes(4, "little")
    with pytest.raises(CorruptDataError, match="no sense"):
        scan(bytes(frame), 7, 0)


def test_the_magic_is_in_no_text() -> None:
    with pytest.raises(UnicodeDecodeError):
        MAGIC.decode()


def test_a_recovery_term_comes_back_and_costs_nothing_where_there_is_none() -> None:
    recovering = HardState(Term(5), NodeId("b"), Term(4))
    contents = FrameContents((), recovering, Snapshot(LogIndex(0), Term(0), b""))
    [found] = scan(encode_frame(contents, 3, 0), 3, 0).frames
    assert found == contents
    without = replace(contents, hard_state=HardState(Term(5), NodeId("b")))
    assert len(encode_frame(contents, 3, 0)) == len(encode_frame(without, 3, 0)) + 8
