"""What publishers hear when an append fails, the stream is at a limit, or its leader is gone."""

import pytest

from envelope.errors import DiskFull, FsyncFailed, NotEnoughReplicas, StreamOffline
from envelope.types import AckPolicy
from jetstream.ingest import machine as machine_module
from jetstream.ingest.machine import FULL_GROUP_BYTES, FULL_GROUP_MESSAGES, CountKind
from tests.support.ingest_machine import IngestHarness, outcomes
from tests.support.messages import appends, counted, message

DISK_FULL = DiskFull("no space left")
REFUSED = f"error {DiskFull.ack_code}"


# --- failed appends ---------------------------------------------------------------------------------------


def test_a_refused_append_refuses_every_message_and_is_as_if_it_never_was() -> None:
    stream = IngestHarness()
    stream.store(message(b"0", Nats_Msg_Id="z", Jetstream_Txid="1"))
    group = (
        message(b"1", "r0", Nats_Msg_Id="a", Jetstream_Txid="5"),
        message(b"2", "r1", Jetstream_Ack="leader"),
        message(b"3"),
        message(b"1", "r2", Nats_Msg_Id="a"),
    )
    stream.receive(*group)
    answers = stream.refuse(DISK_FULL)
    assert sorted(outcomes(answers)) == [("r0", "error 10047"), ("r1", "error 10047"), ("r2", "error 10047")]
    assert counted(stream.actions, CountKind.REFUSED) == 3
    assert counted(stream.actions, CountKind.DROPPED_WITHOUT_REPLY) == 1
    assert stream.machine.log_end_offset == 1
    assert stream.machine.pending_acks == 0
    again = stream.store(
        message(
            b"x", "q0", Nats_Expected_Last_Msg_Id="z", Nats_Expected_Last_Sequence="1", Jetstream_Txid="2"
        ),
        *group,
    )
    assert sorted(outcomes(again)) == [("q0", 1), ("r0", 2), ("r1", 3), ("r2", "dup 2")]


def test_a_refused_append_leaves_earlier_groups_alone() -> None:
    stream = IngestHarness()
    stream.receive(message(b"1", "r0", Nats_Msg_Id="a"))
    stream.append()
    stream.receive(message(b"1", "r1", Nats_Msg_Id="a"), message(b"2", "r2"))
    assert outcomes(stream.refuse(DISK_FULL)) == [("r2", "error 10047")]
    assert outcomes(stream.commit()) == [("r0", 0), ("r1", "dup 0")]


def test_an_append_of_unknown_outcome_is_answered_with_silence_its_repeats_included() -> None:
    stream = IngestHarness()
    stream.receive(message(b"0", "r0", Nats_Msg_Id="old"))
    stream.append()
    stream.receive(
        message(b"1", "r1", Nats_Msg_Id="a"),
        message(b"2", "r2", Jetstream_Ack="leader"),
        message(b"1", "r3", Nats_Msg_Id="a"),
    )
    assert stream.fail(FsyncFailed("input/output error")) == []
    assert counted(stream.actions, CountKind.UNKNOWN_OUTCOME) == 3
    answers = stream.receive(
        message(b"1", "r4", Nats_Msg_Id="a"),
        message(b"3", "r5"),
        message(b"4", "r6", Nats_Msg_Id="b"),
        message(b"5"),
    )
    assert sorted(outcomes(answers)) == [("r5", "error 10118"), ("r6", "error 10118")]
    assert appends(stream.actions) == []
    assert counted(stream.actions, CountKind.UNKNOWN_OUTCOME) == 1
    assert stream.machine.pending_acks == 1, "r0"
    assert outcomes(stream.commit(1)) == [("r0", 0)], "what was stored before can still be committed"
    assert outcomes(stream.receive(message(b"0", "r7", Nats_Msg_Id="old"))) == [("r7", "dup 0")]


# --- overload ---------------------------------------------------------------------------------------------


def test_overflow_is_refused_as_retriable() -> None:
    stream = IngestHarness()
    answers = stream.overflow(
        message(b"1", "r0"), message(b"2"), message(b"3", "r1", Nats_Msg_Id="a"), message(b"4", "r2")
    )
    assert sorted(outcomes(answers)) == [("r0", "error 10077"), ("r1", "error 10077"), ("r2", "error 10077")]
    error = answers[0].body["error"]
    assert isinstance(error, dict)
    assert error["code"] == 503
    assert counted(stream.actions, CountKind.REFUSED) == 3
    assert counted(stream.actions, CountKind.DROPPED_WITHOUT_REPLY) == 1


def test_overflow_of_a_stream_that_only_listens_is_silent() -> None:
    stream = IngestHarness(AckPolicy.NONE)
    answers = stream.overflow(message(b"1", "r0"), message(b"2", "r1", Jetstream_Ack="all"))
    assert outcomes(answers) == [("r1", "error 10077")]
    assert counted(stream.actions, CountKind.DROPPED_WITHOUT_REPLY) == 1


def test_overflow_of_a_message_for_another_stream_is_silent() -> None:
    assert IngestHarness().overflow(message(b"1", "r0", Nats_Expected_Stream="audit")) == []


def test_an_overflowing_repeat_is_answered_as_one() -> None:
    stream = IngestHarness()
    stream.store(message(b"1", Nats_Msg_Id="a"))
    stream.receive(message(b"2", "r0", Nats_Msg_Id="b"))
    assert outcomes(
        stream.overflow(message(b"1", "r1", Nats_Msg_Id="a"), message(b"2", "r2", Nats_Msg_Id="b"))
    ) == [("r1", "dup 0")]
    assert outcomes(stream.append() + stream.commit()) == [("r0", 1), ("r2", "dup 1")]


def test_repeats_do_not_gather_without_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_module, "PENDING_ACKS_MAX", 3)
    stream = IngestHarness()
    stream.receive(message(b"1", "r", Nats_Msg_Id="a"))
    for number in range(10):
        assert stream.overflow(message(b"1", f"q{number}", Nats_Msg_Id="a")) == []
    assert stream.machine.pending_acks == 4
    assert counted(stream.actions, CountKind.UNKNOWN_OUTCOME) == 1
    stream.append()
    assert outcomes(stream.commit()) == [("r", 0), ("q0", "dup 0"), ("q1", "dup 0"), ("q2", "dup 0")]


def test_a_high_watermark_that_does_not_move_ends_in_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_module, "PENDING_ACKS_MAX", 3)
    stream = IngestHarness()
    stream.receive(*(message(reply=f"r{number}") for number in range(4)))
    stream.append()
    assert outcomes(stream.receive(message(reply="q"))) == [("q", "error 10077")]
    stream.commit()
    assert stream.receive(message(reply="q")) == []


# --- two appends in flight ------------------------------------------------------------------------------


def test_a_second_group_begins_when_it_is_worth_a_sync() -> None:
    least = machine_module.NEXT_GROUP_MESSAGES_MIN
    stream = IngestHarness()
    assert stream.machine.wants_group(1, 0)
    stream.receive(*(message() for _ in range(4 * least)))
    assert not stream.machine.wants_group(3 * least - 1, 0)
    assert stream.machine.wants_group(3 * least, 0)
    assert not stream.machine.wants_group(3 * least, 1), "the disk has work from another stream"
    assert stream.machine.wants_group(1, 0, FULL_GROUP_BYTES), "few, and large"
    stream.receive(message())
    assert not stream.machine.wants_group(4 * least, 0), "two are in flight"
    stream.append()
    assert not stream.machine.wants_group(least - 1, 0)
    assert stream.machine.wants_group(least, 0)
    stream.append()
    assert stream.machine.wants_group(1, 0)


def replicated(*groups: int, ack: AckPolicy = AckPolicy.ALL) -> IngestHarness:
    """Return a stream whose ``groups`` of so many messages are stored and wait for the replicas."""
    stream = IngestHarness(ack)
    for size in groups:
        stream.receive(*(message() for _ in range(size)))
        stream.append()
    return stream


def test_behind_a_group_that_waits_for_replicas_messages_gather() -> None:
    stream = replicated(8)
    assert not stream.machine.wants_group(5, 0)
    assert stream.machine.wants_group(6, 0)
    stream.commit(7)
    assert not stream.machine.wants_group(5, 0), "one of the group is not committed"
    stream.commit(8)
    assert stream.machine.wants_group(1, 0)


def test_messages_that_come_one_by_one_wait_for_no_other() -> None:
    assert replicated(1, 1).machine.wants_group(1, 0)


def test_three_groups_at_most_wait_for_replicas_until_one_is_full() -> None:
    stream = replicated(1, 1, 1)
    full = FULL_GROUP_MESSAGES
    assert not stream.machine.wants_group(full - 1, 0)
    assert stream.machine.wants_group(full, 0)
    assert stream.machine.wants_group(1, 0, FULL_GROUP_BYTES)
    stream.commit(1)
    assert stream.machine.wants_group(1, 0)


@pytest.mark.parametrize("ack", [AckPolicy.LEADER, AckPolicy.NONE])
def test_nothing_gathers_where_nobody_waits_for_replicas(ack: AckPolicy) -> None:
    assert replicated(8, 1, 1, 1, ack=ack).machine.wants_group(1, 0)


def test_nothing_gathers_that_is_refused_or_among_the_last() -> None:
    stream = replicated(8, 8, 8)
    stream.machine.suspend(NotEnoughReplicas("one is left"))
    assert stream.machine.wants_group(1, 0), "to refuse it"
    stream.machine.suspend(None)
    assert not stream.machine.wants_group(1, 0)
    stream.machine.hurry()
    assert stream.machine.wants_group(1, 0)


def test_a_refused_group_waits_for_no_replica() -> None:
    stream = replicated(8)
    stream.commit()
    stream.receive(*(message() for _ in range(8)))
    stream.refuse(DiskFull("full"))
    assert stream.machine.wants_group(1, 0)


def test_a_refused_append_refuses_the_one_behind_it() -> None:
    stream = IngestHarness()
    stream.receive(message(b"1", "r1", Nats_Msg_Id="a"))
    assert stream.receive(message(b"2", "r2"), message(b"3", "r3", Nats_Msg_Id="a")) == []
    answers = stream.refuse(DiskFull("full"))
    assert sorted(outcomes(answers), key=str) == [(reply, REFUSED) for reply in ("r1", "r2", "r3")]
    assert stream.machine.log_end_offset == 0
    assert not stream.machine.wants_group(1, 0), "the outcome of the second is still to come"
    assert stream.refuse(DiskFull("the group before this one was refused")) == []
    assert stream.machine.wants_group(1, 0)
    assert outcomes(stream.store(message(b"4", "r4", Nats_Msg_Id="a"))) == [("r4", 0)]
    assert stream.values == [b"4"]


def test_a_refused_append_leaves_the_one_before_it_alone() -> None:
    stream = IngestHarness()
    stream.receive(message(b"1", "r1", Nats_Msg_Id="a"))
    stream.receive(message(b"2", "r2"))
    stream.append()
    assert outcomes(stream.refuse(DiskFull("full"))) == [("r2", REFUSED)]
    assert outcomes(stream.commit()) == [("r1", 0)]
    assert outcomes(stream.store(message(b"3", "r3", Nats_Msg_Id="a"))) == [("r3", "dup 0")]
    assert outcomes(stream.store(message(b"4", "r4"))) == [("r4", 1)]


def test_an_append_is_refused_however_many_repeats_came_behind_it() -> None:
    stream = IngestHarness()
    stream.receive(message(b"1", "r1", Nats_Msg_Id="a"))
    for number in range(1000):
        assert stream.receive(message(b"1", f"r{number + 2}", Nats_Msg_Id="a")) == []
    answers = outcomes(stream.refuse(DISK_FULL))
    assert (len(answers), {outcome for _, outcome in answers}) == (1001, {REFUSED})
    assert outcomes(stream.store(message(b"1", "r", Nats_Msg_Id="a"))) == [("r", 0)]


def test_behind_an_append_of_unknown_outcome_nobody_is_told_anything() -> None:
    stream = IngestHarness()
    stream.receive(message(b"1", "r1"))
    stream.receive(message(b"2", "r2"))
    assert stream.fail(FsyncFailed("input/output error")) == []
    assert counted(stream.actions, CountKind.UNKNOWN_OUTCOME) == 2
    assert stream.refuse(StreamOffline("the log has failed")) == []
    assert stream.machine.pending_acks == 0
    assert stream.machine.wants_group(1, 0), "to refuse what comes"


def test_an_append_behind_a_failed_one_that_succeeds_is_a_broken_shell() -> None:
    stream = IngestHarness()
    stream.receive(message(b"1"))
    stream.receive(message(b"2"))
    stream.refuse(DiskFull("full"))
    with pytest.raises(AssertionError, match="M5"):
        stream.append()
