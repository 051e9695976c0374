"""What follows from a refusal in a session."""

import asyncio

import pytest

from envelope.errors import (
    DeadlinePassed,
    JetstreamError,
    Overloaded,
    RecordTooLarge,
    SequenceGap,
    SequencePassed,
    SessionExpired,
)
from jetstream.client.publish.ack_inbox import ClaimedFuture
from jetstream.client.publish.session_messages import (
    PublisherSessionSettings,
    SessionFuture,
    SessionMessage,
)
from jetstream.client.publish.session_rules import (
    AckTimeout,
    RefusalEffect,
    derived_effect,
    refusal_effect,
)

SEND_AGAIN, LEAVE_OUT, GIVE_UP = RefusalEffect.SEND_AGAIN, RefusalEffect.LEAVE_OUT, RefusalEffect.GIVE_UP


@pytest.mark.parametrize("names_last_acked", [False, True])
@pytest.mark.parametrize("is_begun", [False, True])
@pytest.mark.parametrize(
    ("error", "consequence"),
    [
        (Overloaded("full"), SEND_AGAIN),
        (DeadlinePassed("silence"), SEND_AGAIN),
        (RecordTooLarge("too large"), LEAVE_OUT),
        (SequencePassed("too late"), GIVE_UP),
    ],
)
def test_most_refusals_mean_the_same_everywhere(
    error: JetstreamError, consequence: RefusalEffect, *, names_last_acked: bool, is_begun: bool
) -> None:
    assert refusal_effect(error, names_last_acked=names_last_acked, is_begun=is_begun) is consequence


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_gap_ends_a_session_only_where_nothing_on_its_way_can_be_missing(*, is_begun: bool) -> None:
    gap = SequenceGap("gap")
    assert refusal_effect(gap, names_last_acked=False, is_begun=is_begun) is SEND_AGAIN
    assert refusal_effect(gap, names_last_acked=True, is_begun=is_begun) is GIVE_UP


@pytest.mark.parametrize("names_last_acked", [False, True])
def test_a_session_that_the_stream_has_known_is_never_begun_anew(*, names_last_acked: bool) -> None:
    expired = SessionExpired("unknown")
    assert refusal_effect(expired, names_last_acked=names_last_acked, is_begun=False) is SEND_AGAIN
    assert refusal_effect(expired, names_last_acked=names_last_acked, is_begun=True) is GIVE_UP


# --- derived sessions ----------------------------------------------------------------------------------


def derived(error: JetstreamError, *, last_acked: int = 0, names_last_acked: bool = True) -> RefusalEffect:
    return derived_effect(error, 10, last_acked, names_last_acked=names_last_acked, is_begun=last_acked > 0)


def test_what_the_stream_has_passed_was_stored_by_whoever_derived_it() -> None:
    assert derived(SequencePassed("passed")) is RefusalEffect.IS_STORED


@pytest.mark.parametrize(
    ("last_acked", "named", "consequence"),
    [
        (0, 9, RefusalEffect.FOLLOW),
        (4, 9, RefusalEffect.FOLLOW),
        (4, 3, GIVE_UP),
        (4, 4, GIVE_UP),
        (0, 10, GIVE_UP),
        (4, 0, GIVE_UP),
    ],
)
def test_it_goes_on_behind_what_others_have_derived_and_never_behind_a_loss(
    last_acked: int, named: int, consequence: RefusalEffect
) -> None:
    gap = SequenceGap("gap", last_sequence=named)
    assert derived(gap, last_acked=last_acked) is consequence
    assert derived(gap, last_acked=last_acked, names_last_acked=False) is SEND_AGAIN


def test_what_is_refused_for_good_ends_a_derived_session() -> None:
    assert derived(RecordTooLarge("too large")) is GIVE_UP
    assert derived(Overloaded("full")) is SEND_AGAIN
    assert derived(SessionExpired("unknown"), last_acked=3) is GIVE_UP


@pytest.mark.parametrize(("after", "consequence"), [(None, RefusalEffect.FOLLOW), (0, GIVE_UP), (4, GIVE_UP)])
def test_a_session_that_says_where_it_begins_follows_nobody(
    after: int | None, consequence: RefusalEffect
) -> None:
    settings = PublisherSessionSettings("s", is_derived=True, after=after)
    gap = SequenceGap("gap", last_sequence=9)

    async def effect(last_acked: int) -> RefusalEffect:
        future: SessionFuture = ClaimedFuture(loop=asyncio.get_running_loop())
        message = SessionMessage(10, "a", b"", {}, future, after=4)
        return settings.effect(gap, message, last_acked, is_begun=False)

    assert asyncio.run(effect(4)) is consequence
    assert asyncio.run(effect(3)) is SEND_AGAIN, "one on its way may be missing"


# --- how long to wait ----------------------------------------------------------------------------------


def test_the_wait_for_an_ack_doubles_whenever_it_was_too_short_within_limits() -> None:
    timeout = AckTimeout(2.0, 60.0, 1000)
    waits = [timeout.seconds]
    for _ in range(6):
        timeout.passed()
        waits.append(timeout.seconds)
    assert waits == [2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0], "half of what the session is given for a retry"


def test_the_wait_for_an_ack_is_at_most_sixteen_times_what_was_asked_for_and_never_less() -> None:
    grown, long = AckTimeout(0.1, 60.0, 1), AckTimeout(90.0, 60.0, 1)
    for _ in range(9):
        grown.passed()
        long.passed()
    assert (grown.seconds, long.seconds) == (1.6, 90.0)


def test_the_wait_for_an_ack_shrinks_when_a_window_of_acks_came_much_sooner() -> None:
    timeout = AckTimeout(2.0, 60.0, 3)
    timeout.passed()
    timeout.passed()
    for took_s in (0.1, 0.1, 2.1, 0.1, 2.0):
        timeout.acked(took_s)
    assert timeout.seconds == 8.0, "one took more than a quarter, and the next window is not full"
    timeout.acked(0.1)
    assert timeout.seconds == 4.0
    for _ in range(9):
        timeout.acked(0.0)
    assert timeout.seconds == 2.0


def test_acks_from_before_the_wait_was_too_short_do_not_shrink_it() -> None:
    timeout = AckTimeout(1.0, 60.0, 2)
    timeout.passed()
    timeout.acked(0.1)
    timeout.passed()
    timeout.acked(0.1)
    assert timeout.seconds == 4.0
