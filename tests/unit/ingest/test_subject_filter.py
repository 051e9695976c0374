"""The messages of a subscription that are delivered, and those that are dropped."""

import pytest

from jetstream.ingest.messages import MessageBlock
from jetstream.ingest.subject_filter import SubjectFilter


def received(pattern: str, *blocks: list[bytes]) -> tuple[list[list[bytes]], list[int]]:
    """Return the subjects of the blocks that are delivered, and the numbers of messages dropped."""
    delivered: list[list[bytes]] = []
    dropped: list[int] = []
    subjects = SubjectFilter(pattern, lambda block: delivered.append(block.subjects), dropped.append)
    for block in blocks:
        count = len(block)
        subjects.receive(MessageBlock(block, [b""] * count, [b"v"] * count, [None] * count))
    return delivered, dropped


@pytest.mark.parametrize("subject", [b"a.b", b"a.c"])
def test_messages_that_match_are_delivered_in_one_block_known_or_not(subject: bytes) -> None:
    assert received("a.*", [subject, b"a.b"], [subject]) == ([[subject, b"a.b"], [subject]], [])


def test_messages_of_other_subjects_are_dropped_and_counted_every_time() -> None:
    mixed = [b"a.b", b"b", b"a.c", b"a"]
    assert received("a.>", mixed, mixed) == ([[b"a.b", b"a.c"]] * 2, [2, 2])


def test_a_block_of_which_nothing_matches_is_not_delivered() -> None:
    assert received("a", [b"b", b"b"]) == ([], [2])
