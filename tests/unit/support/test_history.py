"""A history that can be is no anomaly; of each kind of anomaly there is one that is wrong on purpose."""

from collections.abc import Sequence

import pytest

from tests.support.history import (
    Acked,
    Drained,
    EndTold,
    Event,
    Note,
    Read,
    ReadFailed,
    Refused,
    Seen,
    Sent,
    Unknown,
    anomalies,
    decode,
    encode,
)


def sent(at: float, value: str, attempt: int = 1, connection: str = "c", has_id: bool = True) -> Sent:
    return Sent(
        at=at,
        stream="s",
        value=value,
        attempt=attempt,
        connection=connection,
        message_id=value if has_id else None,
    )


def acked(at: float, value: str, offset: int, attempt: int = 1, epoch: int = 1) -> Acked:
    return Acked(
        at=at, stream="s", value=value, attempt=attempt, offset=offset, epoch=epoch, duplicate=attempt > 1
    )


def read(at: float, reader: str, *values: str, start: int = 0, epoch: int = 1) -> Read:
    return Read(at, reader, "s", tuple(Seen(start + row, epoch, value) for row, value in enumerate(values)))


def told(asked_at: float, end: int) -> EndTold:
    return EndTold(asked_at, asked_at + 0.5, "r", "s", end)


GOOD: Sequence[Event] = (
    sent(1, "a"),
    Unknown(2, "s", "a", 1),
    sent(3, "a", attempt=2),
    acked(4, "a", 0, attempt=2),
    told(4.1, 1),
    sent(5, "b"),
    sent(5.1, "x", connection="d"),
    Refused(5.2, "s", "x", 1, "disk_full"),
    Note(5.3, "kill"),
    acked(6, "b", 1),
    read(7, "r", "a"),
    ReadFailed(7.1, "r", "s", "not_leader", retriable=True),
    sent(8, "c", has_id=False),
    read(9, "r", "b", "c", start=1),
    read(10, "drain", "a", "b", "c"),
    Drained(10, "drain", "s"),
)


def test_what_can_be_is_no_anomaly() -> None:
    assert anomalies(GOOD) == []


WRONG: dict[str, tuple[str, Sequence[Event]]] = {
    "an acked value that nobody reads": (
        "lost",
        (
            sent(1, "a"),
            acked(2, "a", 1),
            sent(1, "b", connection="d"),
            read(5, "d", "b"),
            Drained(5, "d", "s"),
        ),
    ),
    "an acked value behind the end": (
        "lost",
        (sent(1, "a"), sent(1, "b"), acked(2, "b", 1), read(5, "d", "a"), Drained(5, "d", "s")),
    ),
    "an acked value that only one of two has": (
        "lost",
        (
            sent(1, "a"),
            acked(2, "a", 0),
            read(5, "d", "a"),
            Drained(5, "d", "s"),
            Drained(5, "e", "s"),
        ),
    ),
    "a value with an id at two offsets": (
        "duplicate",
        (sent(1, "a"), sent(2, "a", attempt=2), read(3, "r", "a", "a")),
    ),
    "a value without an id that was sent once": (
        "duplicate",
        (sent(1, "a", has_id=False), read(3, "r", "a", "a")),
    ),
    "more copies than were sent": (
        "duplicate",
        (sent(1, "a", has_id=False), sent(2, "a", 2, has_id=False), read(3, "r", "a", "a", "a")),
    ),
    "a value that nobody sent": ("unexpected", (read(3, "r", "a"),)),
    "another value at the offset of an ack": (
        "misplaced",
        (sent(1, "a"), sent(1, "b", connection="d"), acked(2, "a", 0), read(3, "r", "b", "a")),
    ),
    "a value that is read at another offset than that of its ack": (
        "misplaced",
        (sent(1, "a"), acked(2, "a", 7), read(3, "r", "a")),
    ),
    "two acks of one value": (
        "contradictory-acks",
        (sent(1, "a"), sent(2, "a", attempt=2), acked(3, "a", 0), acked(3, "a", 1, attempt=2)),
    ),
    "an ack of another epoch": (
        "misdated",
        (sent(1, "a"), acked(2, "a", 0, epoch=2), read(3, "r", "a", epoch=1)),
    ),
    "an ack of an epoch that was over": (
        "misdated",
        (sent(1, "a"), sent(2, "a", 2), acked(3, "a", 0, 2, epoch=1), read(4, "r", "a", epoch=2)),
    ),
    "a refused value that is stored": (
        "stored-refusal",
        (sent(1, "a"), Refused(2, "s", "a", 1, "stream_offline"), read(3, "r", "a")),
    ),
    "two values at one offset": (
        "inconsistent-offset",
        (sent(1, "a"), sent(1, "b"), read(3, "r", "a"), read(3, "q", "b")),
    ),
    "two epochs at one offset": (
        "inconsistent-offset",
        (sent(1, "a"), read(3, "r", "a", epoch=1), read(3, "q", "a", epoch=2)),
    ),
    "an epoch that goes back": (
        "descending-epoch",
        (sent(1, "a"), sent(1, "b"), read(3, "r", "a", epoch=2), read(3, "r", "b", start=1)),
    ),
    "an offset that a reader leaves out": (
        "gap",
        (sent(1, "a"), sent(1, "b"), read(3, "r", "a"), read(3, "r", "b", start=2)),
    ),
    "a first offset that is missing": (
        "gap",
        (sent(1, "a"), read(3, "d", "a", start=1), Drained(4, "d", "s")),
    ),
    "an offset that a reader gets again": (
        "nonmonotonic-read",
        (sent(1, "a"), read(3, "r", "a"), read(4, "r", "a")),
    ),
    "values of one connection that have changed places": (
        "disorder",
        (sent(1, "a"), sent(2, "b"), read(3, "r", "b", "a")),
    ),
    "a value before one that was acked when it was sent": (
        "too-early",
        (sent(1, "a"), acked(2, "a", 1), sent(3, "b", connection="d"), read(4, "r", "b", "a")),
    ),
    "an end before what was acked": ("early-end", (sent(1, "a"), acked(2, "a", 0), told(3, 0))),
    "an end before what was read": ("early-end", (sent(1, "a"), read(2, "r", "a"), told(3, 0))),
    "an end before one that was told": ("early-end", (told(1, 5), told(2, 4))),
    "a reader that is told a lie about its past": (
        "failed-read",
        (ReadFailed(1, "r", "s", "diverged_history", retriable=False),),
    ),
}


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.replace(" ", "-"))
def test_what_cannot_be_is_found_and_nothing_else(case: str) -> None:
    kind, events = WRONG[case]
    assert {anomaly.kind for anomaly in anomalies(events)} == {kind}


def test_a_repeat_without_an_id_or_after_the_window_may_be_stored_again() -> None:
    for has_id, again_at in ((False, 2.0), (True, 500.0)):
        again = sent(again_at, "a", 2, has_id=has_id)
        assert anomalies([sent(1, "a", has_id=has_id), again, read(501, "r", "a", "a")]) == []


def test_an_answer_that_was_asked_for_before_is_not_too_early() -> None:
    assert anomalies([sent(1, "a"), acked(3, "a", 0), told(2.9, 0)]) == []


def test_a_value_that_was_refused_once_and_not_again_may_be_stored() -> None:
    refused = Refused(2, "s", "a", 1, "not_enough_replicas")
    assert anomalies([sent(1, "a"), refused, sent(3, "a", 2), read(4, "r", "a")]) == []


def test_streams_are_judged_apart() -> None:
    other = Read(3, "r", "t", (Seen(0, 1, "b"),))
    assert (
        anomalies(
            [
                sent(1, "a"),
                read(2, "r", "a"),
                Sent(at=1, stream="t", value="b", attempt=1, connection="c", message_id=None),
                other,
            ]
        )
        == []
    )


def test_of_many_anomalies_the_first_are_told_with_their_number() -> None:
    found = anomalies([read(1, "r", *map(str, range(100)))])
    assert len(found) == 6
    assert found[-1].text == "and 95 more"


@pytest.mark.parametrize("event", [*GOOD, told(1, 2)], ids=lambda event: type(event).__name__)
def test_a_line_of_a_history_is_read_as_it_was_written(event: Event) -> None:
    assert decode(encode(event)) == event
