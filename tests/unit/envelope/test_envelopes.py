"""The bytes of an envelope: what is one, what is none, and what cannot be taken."""

import struct
import subprocess
import sys
import zlib
from typing import Any

import pytest
import zstandard

from envelope.envelopes import (
    AFTER_COOKIE,
    COOKIE,
    Kind,
    claimed,
    decode,
    encode_batch,
    encode_message,
    may_be_batch,
)
from envelope.errors import InvalidEnvelope, JetstreamError, RecordTooLarge, Unsupported
from envelope.types import AckPolicy
from tests.support.commands import REPOSITORY
from tests.support.envelopes import batch_of, extent, field, raw

BYTES_MAX = 1 << 20


def test_a_message_comes_back_as_it_was_said() -> None:
    data = encode_message(
        b"value",
        message_id=b"id",
        key=b"\x00\xff",
        txid=-5,
        ack=AckPolicy.LEADER,
        ack_inbox="inbox.1",
        correlation_id="c-ü",
        headers=[("a", b"1"), ("a", b""), ("ü", b"\xff")],
    )
    found = decode(data)
    assert found is not None
    assert found.kind is Kind.MESSAGE
    assert (found.message_id, found.key, found.txid) == (b"id", b"\x00\xff", -5)
    assert (found.ack, found.ack_inbox, found.correlation_id) == (AckPolicy.LEADER, b"inbox.1", "c-ü")
    assert found.headers == [("a", b"1"), ("a", b""), ("ü", b"\xff")]
    assert (found.tombstone, found.records, found.content(BYTES_MAX)) == (False, 1, b"value")


def test_what_is_left_out_is_not_there() -> None:
    found = decode(encode_message(b""))
    assert found is not None
    assert found[1:8] == (None, None, None, None, None, None, ())
    assert (found.tombstone, found.size_bytes) == (False, 0)


def test_no_value_is_a_tombstone_and_an_empty_one_is_none() -> None:
    gone, empty = decode(encode_message(None, key=b"k")), decode(encode_message(b"", key=b"k"))
    assert gone is not None
    assert empty is not None
    assert (gone.tombstone, empty.tombstone) == (True, False)


@pytest.mark.parametrize("value", [b"", b"x" * 100_000])
def test_a_compressed_message_comes_back_as_it_was(value: bytes) -> None:
    data = encode_message(value, compress=True, message_id=b"a")
    found = decode(data)
    assert found is not None
    assert claimed(data) == (1, len(value))
    assert found.size_bytes == len(value)
    assert bytes(found.content(BYTES_MAX)) == value
    assert len(data) < 200


@pytest.mark.parametrize("compress", [False, True])
def test_a_batch_says_how_much_it_holds_before_it_is_opened(compress: bool) -> None:
    data = encode_batch(b"arrow" * 1000, 7, compress=compress, message_id=b"a")
    found = decode(data)
    assert found is not None
    assert found.kind is Kind.BATCH
    assert claimed(data) == (found.records, found.size_bytes) == (7, 5000)
    assert may_be_batch(data)
    assert bytes(found.content(BYTES_MAX)) == b"arrow" * 1000


def test_the_cookie_sorts_as_the_comparison_needs_it() -> None:
    others = [b"", b"\x8a", b"\x8aJS", b"\x8aJSD\xff", b"\x8aJSF", b"\x8b", b"\xff" * 5, b"{}"]
    assert [COOKIE <= data < AFTER_COOKIE for data in others] == [False] * len(others)
    assert all(COOKIE <= COOKIE + end < AFTER_COOKIE for end in (b"", b"\x00", b"\xff" * 9))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        COOKIE,
        COOKIE + bytes(12),
        COOKIE + b"is how this text begins",
        raw()[:-1],
        raw(payload=b"x")[:-1],
        raw(payload=b"x") + b"y",
        b"\x8aJSF" + raw()[4:],
    ],
)
def test_what_has_no_fitting_checksum_is_no_envelope(data: bytes) -> None:
    assert decode(data) is None


def test_any_flipped_bit_makes_it_none() -> None:
    data = encode_message(b"value", key=b"k")
    for place in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[place] ^= 1 << bit
            assert decode(bytes(flipped)) is None, (place, bit)


@pytest.mark.parametrize(
    "data",
    [
        raw(version=2),
        raw(kind=0),
        raw(kind=3),
        raw(flags=4),
        raw(flags=0x8000),
        raw(field(9, b"")),
        raw(field(255, b"x")),
    ],
)
def test_what_this_version_does_not_know_is_said_to_be_unsupported(data: bytes) -> None:
    with pytest.raises(Unsupported):
        decode(data)


INVALID: dict[str, bytes] = {
    "a header longer than the message": raw(claim=9),
    "a header longer than headers may be": raw(bytes(70_000)),
    "half a field": raw(b"\x02"),
    "a field that ends beyond the header": raw(b"\x02\x09\x00x", b"payload"),
    "a field twice": raw(field(2, b"a") + field(2, b"b")),
    "fields out of order": raw(field(3, b"a") + field(2, b"b")),
    "field 0": raw(field(0, b"")),
    "an empty message id": raw(field(2, b"")),
    "a message id that is too long": raw(field(2, b"x" * 1025)),
    "a txid of four bytes": raw(field(4, b"1234")),
    "an ack policy that is none": raw(field(5, b"\x03")),
    "an ack policy of two bytes": raw(field(5, b"\x00\x00")),
    "an ack inbox with a command in it": raw(field(6, b"a\r\nPUB b 0\r\n")),
    "an ack inbox with a wildcard": raw(field(6, b"a.*")),
    "an empty ack inbox": raw(field(6, b"")),
    "an ack inbox that is not UTF-8": raw(field(6, b"\xff")),
    "an ack inbox that belongs to NATS": raw(field(6, b"$SYS.REQ.SERVER.PING")),
    "an ack inbox that is too long": raw(field(6, b"x" * 513)),
    "an empty correlation id": raw(field(7, b"")),
    "a correlation id that is too long": raw(field(7, b"x" * 257)),
    "a correlation id that is not UTF-8": raw(field(7, b"\xff")),
    "a header without a name": raw(field(8, b"\x00\x00value")),
    "a header of one byte": raw(field(8, b"\x00")),
    "a header whose name ends beyond it": raw(field(8, b"\x05\x00name")),
    "a header name that is not UTF-8": raw(field(8, b"\x01\x00\xff")),
    "a tombstone with a payload": raw(payload=b"x", flags=2),
    "a message with an extent": raw(extent(1, 1), b"x"),
    "a compressed message without an extent": raw(payload=zstandard.compress(b"x"), flags=1),
    "a compressed message of two records": raw(extent(2, 1), zstandard.compress(b"x"), flags=1),
    "a compressed tombstone that holds something": raw(extent(1, 1), zstandard.compress(b"x"), flags=3),
    "a batch without an extent": raw(kind=2),
    "a batch whose extent is short": raw(field(1, b"1234"), kind=2),
    "a batch of no records": raw(extent(0, 0), kind=2),
    "a batch that is longer than it says": raw(extent(1, 1), b"xy", kind=2),
    "a batch with a key": raw(extent(1, 0) + field(3, b"k"), kind=2),
    "a batch with a txid": raw(extent(1, 0) + field(4, bytes(8)), kind=2),
    "a batch that is a tombstone": raw(extent(1, 0), kind=2, flags=2),
}


@pytest.mark.parametrize("name", INVALID)
def test_an_envelope_that_is_wrong_says_why(name: str) -> None:
    with pytest.raises(InvalidEnvelope) as refused:
        decode(INVALID[name])
    assert str(refused.value)


FRAME = zstandard.compress(b"x" * 1000)


@pytest.mark.parametrize(
    ("size", "frame"),
    [
        (999, FRAME),
        (1001, FRAME),
        (1000, FRAME + b"x"),
        (1000, FRAME + FRAME),
        (1000, FRAME[:-1]),
        (1000, b"no frame"),
        (1000, b""),
        (1000, zlib.compress(b"x" * 1000)),
        (1000, zstandard.ZstdCompressor(write_content_size=False).compress(b"x" * 1000)),
    ],
)
def test_what_is_not_one_frame_of_the_stated_size_is_refused(size: int, frame: bytes) -> None:
    found = decode(raw(extent(1, size), frame, flags=1))
    assert found is not None
    with pytest.raises(InvalidEnvelope):
        found.content(BYTES_MAX)


def test_a_bomb_is_refused_before_anything_is_allocated() -> None:
    gigabytes = (1 << 32) - 1
    bomb = zstandard.compress(bytes(1 << 24))
    for size, payload in ((gigabytes, b""), (1 << 24, bomb)):
        found = decode(raw(extent(1, size), payload, flags=1))
        assert found is not None
        with pytest.raises(RecordTooLarge):
            found.content(BYTES_MAX)
    # A frame that says less than it holds, and one that says more than there is memory.
    liar = decode(raw(extent(1, 10), bomb, flags=1))
    assert liar is not None
    with pytest.raises(InvalidEnvelope):
        liar.content(BYTES_MAX)
    huge = b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 1 << 62) + b"\x01\x00\x00"
    greedy = decode(raw(extent(1, 10), huge, flags=1))
    assert greedy is not None
    with pytest.raises(InvalidEnvelope):
        greedy.content(BYTES_MAX)


@pytest.mark.parametrize(
    "fields",
    [
        {"key": b"x" * 65_536},
        {"message_id": b"x" * 1025},
        {"ack_inbox": "a b"},
        {"headers": [("a" * 40_000, b"x" * 30_000)]},
        {"headers": [("a", b"x" * 60_000), ("b", b"x" * 60_000)]},
    ],
)
def test_what_a_node_would_refuse_is_not_encoded(fields: dict[str, Any]) -> None:
    with pytest.raises(JetstreamError):
        encode_message(b"", **fields)


def test_a_misspelt_field_is_not_taken_for_none() -> None:
    with pytest.raises(TypeError, match="kee"):
        encode_message(b"", kee=b"x")  # type: ignore[call-arg]  # what the test is about


def test_what_claims_nothing_is_counted_with_its_length() -> None:
    for data in (b"", raw(payload=b"x"), raw(field(2, b"a")), batch_of(b"", 1)[:26]):
        assert claimed(data) == (1, len(data))


WITHOUT_ARROW = """
import sys
sys.modules["numpy"] = sys.modules["pyarrow"] = None  # to import them, or a part of them, is an error
import importlib, pkgutil
import envelope
for module in pkgutil.iter_modules(envelope.__path__):
    importlib.import_module(f"envelope.{module.name}")
from envelope.envelopes import decode, encode_batch, encode_message
for compress in (False, True):
    found = decode(encode_message(b"v" * 99, compress=compress, key=b"k", txid=7, headers=[("a", b"b")]))
    print(found.key, found.txid, found.headers, found.content(99) == b"v" * 99)
    found = decode(encode_batch(b"Arrow by others", 5, compress=compress, message_id=b"m"))
    print(found.records, found.message_id, bytes(found.content(99)))
"""


def test_where_there_is_no_arrow_envelopes_are_made_and_read_all_the_same() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_ARROW], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    message, batch = "b'k' 7 [('a', b'b')] True", "5 b'm' b'Arrow by others'"
    assert done.stdout.splitlines() == [message, batch] * 2
