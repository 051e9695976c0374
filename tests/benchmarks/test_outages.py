"""The parts of a change of leaders, from a publisher's acks and the nodes' logs."""

import re

import pytest

from benchmarks.outages import Ack, Outage, Strike, first_logged, outage, stamp_ns

MS = 1_000_000
STRIKE = Strike(begun_ns=100 * MS, ended_ns=103 * MS)


def ack(sent_ms: int, acked_ms: int, sequence: int, epoch: int | None = None) -> Ack:
    return Ack(sent_ms * MS, acked_ms * MS, sequence, epoch)


def test_an_outage_lasts_from_the_last_ack_of_the_old_leader_to_the_first_of_the_new() -> None:
    acks = [ack(90, 91, 1, 4), ack(98, 101, 2, 4), ack(340, 343, 3, 5), ack(342, 344, 4, 5)]

    found = outage(STRIKE, acks, seen_ns=110 * MS, led_ns=300 * MS)

    assert found == Outage(whole_ms=242.0, seen_ms=10.0, elected_ms=190.0, acked_ms=43.0)


def test_an_ack_by_the_new_leader_for_a_message_of_before_ends_the_outage() -> None:
    found = outage(STRIKE, [ack(90, 91, 1), ack(99, 500, 2), ack(501, 502, 3)], None, None)

    assert found.whole_ms == 409.0
    assert (found.seen_ms, found.elected_ms, found.acked_ms) == (None, None, None)


@pytest.mark.parametrize(
    ("acks", "problem"),
    [
        ([ack(90, 91, 1), ack(340, 343, 1)], "same sequence"),
        ([ack(90, 91, 1, 4), ack(340, 343, 2, 4)], "same epochs"),
        ([ack(90, 91, 3, 4), ack(340, 343, 2, 5)], "do not rise"),
    ],
)
def test_acks_that_contradict_each_other_are_a_problem(acks: list[Ack], problem: str) -> None:
    found = outage(STRIKE, acks, None, None).problem

    assert found is not None
    assert problem in found


def test_what_the_stream_itself_showed_is_told_first() -> None:
    acks = [ack(90, 91, 1), ack(340, 343, 1)]

    assert outage(STRIKE, acks, None, None, "a record is missing").problem == "a record is missing"


def test_the_first_line_after_a_moment_counts_and_one_without_milliseconds_does_not() -> None:
    lines = [
        "2026-01-02T03:04:05.100Z WARNING node peer=a is dead: nothing listens there",
        "2026-01-02T03:04:06Z WARNING node peer=a is dead: nothing listens there",
        "2026-01-02T03:04:07.250Z WARNING node peer=b is dead: nothing listens there",
        "2026-01-02T03:04:08.500Z WARNING node peer=a is silent",
        "a line of a traceback: peer=a is dead",
    ]
    since = stamp_ns(lines[0])
    assert since is not None

    dead = re.compile(r" peer=a is (dead|silent)")
    assert first_logged(lines, dead, since + 500_000) == since
    assert first_logged(lines, dead, since + 2 * MS) == since + 3_400 * MS
    assert first_logged(lines, dead, since + 9_000 * MS) is None
