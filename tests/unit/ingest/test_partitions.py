"""One partition on the publish path: whose expectations it meets, what it answers, which batches it takes."""

import pytest

from envelope.envelopes import encode_batch, encode_message
from envelope.errors import InvalidEnvelope, WrongExpectedStream
from tests.support.envelopes import arrow, binary
from tests.support.ingest_machine import IngestHarness, outcomes
from tests.support.messages import message

INVALID = f"error {InvalidEnvelope.ack_code}"


def partition(by: str = "key") -> IngestHarness:
    """Partition 2 of ``orders``."""
    return IngestHarness(
        stream="orders/2",
        subject="orders.>",
        partition_of="orders",
        partition=2,
        partitions=4,
        partition_by=by,
    )


def batch(keys: tuple[bytes | None, ...], **fields: object) -> bytes:
    columns = {"value": binary(*(b"v" for _ in keys)), "key": binary(*keys)}
    return encode_batch(arrow(columns), len(keys), **fields)  # type: ignore[arg-type]  # named by each test


def test_an_ack_names_the_partition() -> None:
    stream = partition()
    (plain,) = stream.store(message(b"1", "r1", Nats_Msg_Id="a"))
    assert plain.body == {"stream": "orders/2", "seq": 1, "offset": 0, "epoch": 3, "partition": 2}
    (repeat,) = stream.store(message(b"1", "r2", Nats_Msg_Id="a"))
    assert repeat.body == {**plain.body, "duplicate": True}
    (ordinary,) = IngestHarness().store(message(b"1", "r1"))
    assert "partition" not in ordinary.body


@pytest.mark.parametrize("name", ["orders", "orders/2"])
def test_who_expects_the_whole_stream_or_this_partition_is_answered(name: str) -> None:
    stream = partition()
    (answer,) = stream.store(message(b"1", "r", Nats_Expected_Stream=name))
    assert (answer.body["stream"], answer.body["offset"]) == ("orders/2", 0)


@pytest.mark.parametrize("name", ["orders/1", "orders/17", "orders/", "shop"])
def test_who_expects_another_partition_is_refused_for_nobody_else_stores_it(name: str) -> None:
    stream = partition()
    stream.machine._intake._binds = lambda _stream, _subject: name.startswith("orders/1")
    refused = stream.store(message(b"1", "r", Nats_Expected_Stream=name))
    assert outcomes(refused) == [("r", f"error {WrongExpectedStream.ack_code}")]
    assert (refused[0].body["stream"], refused[0].body["partition"]) == ("orders/2", 2)
    assert not stream.stored


def test_a_stream_beside_the_partitions_stores_and_stays_silent() -> None:
    audit = IngestHarness(stream="audit", subject="orders.>")
    audit.machine._intake._binds = lambda stream, _subject: stream in ("orders", "orders/2")
    for name in ("orders", "orders/2"):
        assert audit.store(message(b"1", "r", Nats_Expected_Stream=name)) == []
    assert len(audit.column("value")) == 2


def test_a_batch_names_its_one_key_where_the_key_decides_on_the_partition() -> None:
    stream = partition()
    by_header = message(batch((b"k", None, b"k")), "r1", Jetstream_Key="k")
    inside = message(batch((b"k",), headers=[("Jetstream-Key", b"k")]), "r2")
    without = message(batch((None, None)), "r3")
    told = [answer.body.get("count") for answer in stream.store(by_header, inside, without)]
    assert told == [3, 1, 2]
    assert stream.column("key") == [b"k", None, b"k", b"k", None, None]


@pytest.mark.parametrize(
    ("keys", "headers"),
    [
        ((b"k", b"l"), {"Jetstream_Key": "k"}),
        ((None, b"l"), {"Jetstream_Key": "k"}),
        ((b"k",), {}),
        ((None, b""), {}),
        ((None,), {"Jetstream_Key": "k", "Jetstream_Txid": "1"}),
    ],
)
def test_a_batch_of_other_keys_is_refused_whole(
    keys: tuple[bytes | None, ...], headers: dict[str, str]
) -> None:
    stream = partition()
    assert outcomes(stream.store(message(batch(keys), "r", **headers))) == [("r", INVALID)]
    assert not stream.stored


@pytest.mark.parametrize("by", ["subject", "queue"])
def test_elsewhere_a_batch_has_any_keys_and_names_none(by: str) -> None:
    stream = partition(by)
    assert stream.store(message(batch((b"k", b"l")), "r"))[0].body["count"] == 2
    assert outcomes(stream.store(message(batch((b"k",)), "r", Jetstream_Key="k"))) == [("r", INVALID)]


def test_a_key_in_an_envelope_and_another_in_a_header_is_refused() -> None:
    stream = partition()
    contradicting = message(encode_message(b"v", key=b"k"), "r", Jetstream_Key="l")
    assert outcomes(stream.store(contradicting)) == [("r", INVALID)]
