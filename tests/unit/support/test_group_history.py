"""A history of a group that can be is no anomaly; of each kind of anomaly there is one wrong on purpose."""

from collections.abc import Sequence

import pytest

from tests.support.group_history import (
    AskedFor,
    Committed,
    Committing,
    CursorTold,
    Delivered,
    Ending,
    Granted,
    GroupEvent,
    Outcome,
    PutOut,
    decode_group_event,
    encode_group_event,
    group_anomalies,
)


def granted(at: float, member: str, since: int) -> Granted:
    return Granted(at, "g", "s", member, since)


def delivered(at: float, member: str, since: int, first: int, values: str) -> Delivered:
    return Delivered(
        at=at, group="g", stream="s", member=member, since=since, first=first, values=tuple(values)
    )


def commit(
    at: float, member: str, since: int, offset: int, outcome: Outcome = "accepted", code: str = ""
) -> tuple[Committing, Committed]:
    """An attempt and its answer, half a second later."""
    name = f"{member} {at}"
    return (
        Committing(at=at, group="g", stream="s", member=member, since=since, commit=name, offset=offset),
        Committed(at=at + 0.5, group="g", stream="s", commit=name, outcome=outcome, code=code),
    )


def again(at: float, member: str, since: int, offset: int, outcome: Outcome) -> tuple[GroupEvent, ...]:
    """An attempt that was made before, and its answer."""
    name = f"{member} {at} again"
    asked = Committing(
        at=at, group="g", stream="s", member=member, since=since, commit=name, offset=offset, again=True
    )
    return asked, Committed(
        at=at + 0.5, group="g", stream="s", commit=name, outcome=outcome, code="cursor_behind"
    )


def told(asked_at: float, offset: int | None) -> CursorTold:
    return CursorTold(asked_at=asked_at, at=asked_at + 0.5, group="g", stream="s", member="z", offset=offset)


GOOD: Sequence[GroupEvent] = (
    granted(1, "a", 1),
    told(1.1, None),
    told(1.2, 0),
    delivered(2, "a", 1, 0, "xyz"),
    *commit(3, "a", 1, 2),
    *commit(4, "a", 1, 3, "unknown"),
    *again(4.1, "a", 1, 2, "superseded"),
    told(4.2, 3),
    delivered(5, "a", 1, 3, "u"),
    Committing(at=5.1, group="g", stream="s", member="a", since=1, commit="nobody knows", offset=4),
    *commit(5.2, "a", 1, 4, "refused", "not_enough_replicas"),
    AskedFor(5.8, "g", "s", "a", 1),
    granted(6, "b", 2),
    PutOut(6.5, "g", "a", "member_fenced"),
    *commit(6.6, "a", 1, 4, "refused", "member_fenced"),
    *again(6.7, "a", 1, 2, "refused"),
    delivered(7, "b", 2, 4, "vw"),
    *commit(8, "b", 2, 6),
    Ending(10, "g", "s", tuple("xyzuvw")),
)


def test_what_can_be_is_no_anomaly() -> None:
    assert group_anomalies(GOOD) == []


def test_events_may_come_in_any_order() -> None:
    assert group_anomalies(reversed(GOOD)) == []


OWNED: Sequence[GroupEvent] = (granted(1, "a", 1), delivered(2, "a", 1, 0, "xyz"))
WRONG: dict[str, tuple[str, Sequence[GroupEvent]]] = {
    "two owners since one generation": ("two-owners", (granted(1, "a", 1), granted(2, "b", 1))),
    "a commit that is accepted when another one owns it": (
        "late-commit",
        (*OWNED, granted(3, "b", 2), *commit(4, "a", 1, 3)),
    ),
    "a commit that is accepted again when another one owns it": (
        "late-commit",
        (*OWNED, *commit(3, "a", 1, 3), granted(4, "b", 2), *again(5, "a", 1, 3, "accepted")),
    ),
    "a commit of a former tenure of the same member": (
        "late-commit",
        (*OWNED, granted(3, "a", 2), *commit(4, "a", 1, 3)),
    ),
    "a cursor that is told below an ack": (
        "regressed-cursor",
        (*OWNED, *commit(3, "a", 1, 3), told(4, None)),
    ),
    "a cursor that is told below one that was told": (
        "regressed-cursor",
        (*OWNED, *commit(3, "a", 1, 2), *commit(4, "a", 1, 3, "unknown"), told(4.5, 3), told(5.1, 2)),
    ),
    "a commit that is accepted below an ack": (
        "regressed-cursor",
        (*OWNED, *commit(3, "a", 1, 3), *again(4, "a", 1, 2, "accepted")),
    ),
    "a cursor that nobody has committed": (
        "invented-cursor",
        (*OWNED, *commit(3, "a", 1, 2), *commit(3.1, "a", 1, 3, "unknown"), told(3.2, 1), told(4, 4)),
    ),
    "a cursor that is committed later": ("invented-cursor", (*OWNED, told(3, 3), *commit(4, "a", 1, 3))),
    "a new owner that begins below an ack": (
        "wrong-start",
        (*OWNED, *commit(3, "a", 1, 3), granted(4, "b", 2), delivered(5, "b", 2, 2, "z")),
    ),
    "a new owner that begins below an ack that came late": (
        "wrong-start",
        (*OWNED, *commit(3, "a", 1, 3), granted(3.2, "b", 2), delivered(5, "b", 2, 2, "z")),
    ),
    "a new owner that begins above all that was committed": (
        "wrong-start",
        (*OWNED, *commit(3, "a", 1, 1), granted(4, "b", 2), delivered(5, "b", 2, 3, "u")),
    ),
    "a new owner that begins at what was refused": (
        "wrong-start",
        (
            *OWNED,
            *commit(3, "a", 1, 3, "refused", "not_enough_replicas"),
            granted(4, "b", 2),
            delivered(5, "b", 2, 3, "u"),
        ),
    ),
    "a new owner that begins at what is committed only then": (
        "wrong-start",
        (
            *OWNED,
            granted(3, "b", 2),
            *commit(3.1, "a", 1, 3, "unknown"),
            delivered(5, "b", 2, 3, "u"),
        ),
    ),
    "records of somebody who owns nothing": ("not-granted", (delivered(1, "a", 1, 0, "x"),)),
    "a record that is left out": ("gap", (*OWNED, delivered(3, "a", 1, 4, "v"))),
    "a record that comes again": ("repeated", (*OWNED, delivered(3, "a", 1, 2, "z"))),
    "a commit of what was not delivered": ("early-commit", (*OWNED, *commit(3, "a", 1, 4))),
    "a commit of what was delivered to another": (
        "early-commit",
        (*OWNED, granted(3, "b", 2), *commit(4, "b", 2, 3)),
    ),
    "a commit of what is delivered only then": ("early-commit", (*OWNED, *commit(1.5, "a", 1, 3))),
    "a commit that is answered as behind": (
        "refused",
        (*OWNED, *commit(3, "a", 1, 3, "refused", "cursor_behind")),
    ),
    "a commit that is answered with something unknown": (
        "refused",
        (*OWNED, *commit(3, "a", 1, 3, "refused", "what")),
    ),
    "a commit that is superseded by none": ("superseded", (*OWNED, *commit(3, "a", 1, 3, "superseded"))),
    "a record that nobody gets": (
        "undelivered",
        (*OWNED, *commit(3, "a", 1, 3), Ending(5, "g", "s", tuple("xyzu"))),
    ),
    "a record that is another one": ("misread", (*OWNED, Ending(5, "g", "s", tuple("xya")))),
}


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.replace(" ", "-"))
def test_what_cannot_be_is_found_and_nothing_else(case: str) -> None:
    kind, events = WRONG[case]
    assert {anomaly.kind for anomaly in group_anomalies(events)} == {kind}


def test_a_new_owner_may_begin_at_any_cursor_of_which_nobody_knows() -> None:
    unknown = (
        *OWNED,
        *commit(3, "a", 1, 1),
        *commit(4, "a", 1, 2, "unknown"),
        *commit(5, "a", 1, 3, "unknown"),
    )
    for first, values in enumerate("yzu", 1):
        assert group_anomalies([*unknown, granted(6, "b", 2), delivered(7, "b", 2, first, values)]) == []


def test_a_cursor_that_was_asked_for_before_an_ack_may_be_below_it() -> None:
    assert group_anomalies([*OWNED, *commit(3, "a", 1, 3), told(3.4, None)]) == []


def test_groups_and_partitions_are_judged_apart() -> None:
    others = (
        Granted(2, "g", "t", "b", 1),
        Granted(2, "h", "s", "b", 1),
        CursorTold(asked_at=5, at=6, group="h", stream="s", member="z", offset=None),
    )
    assert group_anomalies([*OWNED, *commit(3, "a", 1, 3), *others]) == []


def test_of_many_anomalies_the_first_are_told_with_their_number() -> None:
    found = group_anomalies([*OWNED, Ending(5, "g", "s", (*"xyz", *map(str, range(100))))])
    assert len(found) == 6
    assert found[-1].text == "and 95 more"


@pytest.mark.parametrize("event", GOOD, ids=lambda event: type(event).__name__)
def test_a_line_of_a_history_is_read_as_it_was_written(event: GroupEvent) -> None:
    assert decode_group_event(encode_group_event(event)) == event
