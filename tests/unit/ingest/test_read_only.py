"""What publishers of a read-only stream are told."""

from envelope.errors import StreamReadOnly
from envelope.types import AckPolicy
from jetstream.ingest.machine import CountKind
from tests.support.ingest_machine import IngestHarness, outcomes
from tests.support.messages import counted, message

REFUSAL = StreamReadOnly("stream orders is read-only")
READ_ONLY = f"error {StreamReadOnly.ack_code}"


def test_the_ack_has_the_number_of_a_sealed_stream_of_nats() -> None:
    stream = IngestHarness()
    stream.machine.suspend(REFUSAL)
    [answer] = stream.receive(message(reply="r"))
    assert answer.body["error"] == {
        "code": 400,
        "err_code": 10109,
        "description": "stream orders is read-only",
    }


def test_what_is_in_flight_is_acked_and_what_waits_is_refused() -> None:
    stream = IngestHarness()
    stream.receive(message(b"1", "r1"))
    stream.machine.suspend(REFUSAL)
    refused = stream.receive(message(b"2", "r2", Jetstream_Key="k"), message(b"3", "r3"))
    assert sorted(outcomes(refused)) == [("r2", READ_ONLY), ("r3", READ_ONLY)]
    assert stream.append() == []
    assert outcomes(stream.commit()) == [("r1", 0)]
    stream.machine.suspend(None)
    assert outcomes(stream.store(message(b"4", "r4"))) == [("r4", 1)]
    assert stream.values == [b"1", b"4"]


def test_what_is_refused_does_not_gather() -> None:
    stream = IngestHarness()
    for _ in range(4):
        stream.receive(message())
        stream.append()
    assert not stream.machine.wants_group(1, 0), "it waits for the replicas"
    stream.machine.suspend(REFUSAL)
    assert stream.machine.wants_group(1, 0)


def test_a_repeat_is_acked_with_its_offset_once_the_original_is_committed() -> None:
    stream = IngestHarness()
    stream.store(message(b"1", "r1", Nats_Msg_Id="a"))
    stream.receive(message(b"2", "r2", Nats_Msg_Id="b"))
    stream.machine.suspend(REFUSAL)
    assert outcomes(stream.receive(message(b"1", "r3", Nats_Msg_Id="a"))) == [("r3", "dup 0")]
    assert stream.receive(message(b"2", "r4", Nats_Msg_Id="b")) == []
    stream.append()
    assert outcomes(stream.commit()) == [("r2", 1), ("r4", "dup 1")]


def test_a_message_of_a_session_has_no_place_while_the_stream_is_read_only() -> None:
    stream = IngestHarness()
    stream.machine.suspend(REFUSAL)
    place = {"Jetstream_Session": "s", "Jetstream_Sequence": "1", "Jetstream_Sequence_After": "0"}
    assert outcomes(stream.receive(message(b"1", "r1", **place))) == [("r1", READ_ONLY)]
    stream.machine.suspend(None)
    assert outcomes(stream.store(message(b"1", "r1", **place))) == [("r1", 0)], "the refusal left no trace"


def test_who_is_not_told_is_counted() -> None:
    stream = IngestHarness(AckPolicy.NONE)
    stream.machine.suspend(REFUSAL)
    assert outcomes(stream.receive(message(b"1", "r1"), message(b"2", "r2", Jetstream_Ack="all"))) == [
        ("r2", READ_ONLY)
    ]
    assert counted(stream.actions, CountKind.DROPPED_WITHOUT_REPLY) == 1
    assert counted(stream.actions, CountKind.REFUSED) == 1
