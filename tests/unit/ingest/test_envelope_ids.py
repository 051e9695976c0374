"""The message id in an envelope's field, beside what headers say of the same message."""

import pytest

from envelope.envelopes import encode_message
from envelope.errors import InvalidEnvelope
from envelope.types import Offset
from jetstream.ingest.publishers.dedupe import DedupeWindow, window_us
from jetstream.ingest.publishers.history import PublisherHistory
from tests.support.ingest_machine import IDS_MAX, WINDOW, IngestHarness, absorb, outcomes
from tests.support.messages import message

INVALID = f"error {InvalidEnvelope.ack_code}"


@pytest.mark.parametrize("inside", [False, True])
def test_a_message_has_an_id_or_a_session_and_not_both(inside: bool) -> None:
    stream = IngestHarness()
    place = {"Jetstream-Session": "s", "Jetstream-Sequence": "1", "Jetstream-Sequence-After": "0"}
    within = [(name, value.encode()) for name, value in place.items()] if inside else []
    both = encode_message(b"v", message_id=b"m", headers=within)
    outside = {} if inside else {name.replace("-", "_"): value for name, value in place.items()}
    assert outcomes(stream.store(message(both, "r", **outside))) == [("r", INVALID)]
    stream.store(message(b"w", "r", Nats_Msg_Id="m"))
    assert stream.column("value") == [b"w"]


@pytest.mark.parametrize("ids", [[b""], [b"", b"other"]])
def test_an_id_behind_an_empty_one_is_found_again_by_who_reads_the_log(ids: list[bytes]) -> None:
    stream = IngestHarness()
    empty = [("Nats-Msg-Id", message_id) for message_id in ids]
    once = message(encode_message(b"v", message_id=b"m", headers=[*empty, ("A", b"1")]), "r")
    assert outcomes(stream.store(once)) == [("r", 0)]
    (records,) = stream.stored
    again = PublisherHistory(DedupeWindow(window_us(WINDOW), IDS_MAX), Offset(1))
    absorb(again, records)
    assert (again.dedupe.lookup(b"m"), again.id_before(again.end)) == (0, b"m")
    restarted = IngestHarness(log_end_offset=1, history=again)
    restarted.now = stream.now
    assert outcomes(restarted.receive(once)) == [("r", "dup 0")]
