"""A proposal that is retried is applied once, on every voter and over every snapshot."""

import struct

import pytest

from envelope.errors import CorruptDataError
from envelope.types import LogIndex
from metadata.raft.proposals import AppliedProposals, ProposalId, decode_proposal, encode_proposal


def named(number: int) -> ProposalId:
    return ProposalId(number.to_bytes(16, "big"))


def applied(*numbers: int, remembered_max: int = 4) -> AppliedProposals:
    """Proposal ``n`` applied at index ``10 n``."""
    proposals = AppliedProposals(remembered_max)
    for number in numbers:
        proposals.add(named(number), LogIndex(10 * number))
    return proposals


@pytest.mark.parametrize("command", [b"", b"command", bytes(100)])
def test_a_payload_carries_its_name_and_command(command: bytes) -> None:
    payload = encode_proposal(named(7), command)
    assert len(payload) == 16 + len(command)
    assert decode_proposal(payload) == (named(7), command)


def test_a_payload_without_room_for_a_name_is_corrupt() -> None:
    with pytest.raises(CorruptDataError, match="15 bytes"):
        decode_proposal(bytes(15))


def test_a_proposal_is_new_until_it_was_applied() -> None:
    proposals = applied(1)
    assert not proposals.is_new(named(1))
    assert proposals.index_of(named(1)) == 10
    assert proposals.is_new(named(2))
    assert proposals.index_of(named(2)) is None


def test_the_oldest_proposals_are_forgotten_beyond_the_limit() -> None:
    proposals = applied(1, 2, 3, 4, 5, 6)
    assert [number for number in range(1, 7) if not proposals.is_new(named(number))] == [3, 4, 5, 6]
    assert len(proposals) == 4


def test_a_snapshot_carries_what_is_remembered_in_its_order() -> None:
    proposals = applied(1, 2, 3, 4, 5)
    restored = AppliedProposals.decode(proposals.encode(), 4)
    assert restored.encode() == proposals.encode()
    restored.add(named(6), LogIndex(60))
    proposals.add(named(6), LogIndex(60))
    assert restored.encode() == proposals.encode(), "both forget the same one"
    assert restored.is_new(named(2))


def test_the_encoding_is_what_the_table_says() -> None:
    assert applied(1, 2).encode() == struct.pack("<I", 2) + b"".join(
        named(number) + struct.pack("<Q", 10 * number) for number in (1, 2)
    )


_ONE = applied(1).encode()[4:]
_TWO = applied(2).encode()[4:]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00\x00\x00",
        struct.pack("<I", 1),
        struct.pack("<I", 1) + _ONE[:-1],
        struct.pack("<I", 0) + _ONE,
        struct.pack("<I", 2) + _TWO + _ONE,
        struct.pack("<I", 2) + _ONE + _ONE[:16] + struct.pack("<Q", 99),
        struct.pack("<I", 5) + b"".join(named(n) + struct.pack("<Q", n) for n in range(1, 6)),
    ],
)
def test_bytes_that_are_no_encoding_are_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptDataError):
        AppliedProposals.decode(data, 4)


def test_a_proposal_is_remembered_once_and_in_the_order_of_the_log() -> None:
    with pytest.raises(AssertionError, match="R13"):
        applied(1).add(named(1), LogIndex(20))
    with pytest.raises(AssertionError, match="R13"):
        applied(2).add(named(1), LogIndex(10))


def test_a_name_has_sixteen_bytes() -> None:
    with pytest.raises(AssertionError, match="3 bytes"):
        encode_proposal(ProposalId(b"abc"), b"command")
