"""What replicas say to each other survives the wire, whatever pieces it arrives in, and damage is told."""

from dataclasses import replace
from itertools import starmap
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from envelope.errors import RemoteProtocolError
from envelope.types import Incarnation, LeaderEpoch, NodeEpoch, Offset, StreamName
from jetstream.replica.wire import (
    BODY_BYTES_MAX,
    HEADER_BYTES_MAX,
    BatchesMessage,
    Declare,
    DivergingMessage,
    FetchMessage,
    FetchRefusal,
    Ping,
    Pong,
    RefusedMessage,
    RepairAnswer,
    RepairMessage,
    StartOverMessage,
    WireMessage,
    WireReader,
    encode,
)
from tests.support.replica_sessions import fed

NUMBERS = st.integers(0, 2**64 - 1)
HANDLES = st.integers(0, 2**32 - 1)
TEXTS = st.text(max_size=255).filter(lambda text: text.isprintable())


def _with_numbers(kind: type[Any], **special: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(kind, **{name: special.get(name, NUMBERS) for name in kind.__match_args__})


@st.composite
def answers(draw: st.DrawFn) -> BatchesMessage:
    """Batches as a leader can send them: with a body if there are any."""
    base = draw(st.integers(0, 2**63))
    body = draw(st.binary(max_size=300))
    end = base + draw(st.integers(1, 1000)) if body else base
    epochs = draw(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=4 if body else 0))
    plain = draw(
        _with_numbers(
            BatchesMessage,
            base=st.just(base),
            next=st.just(end),
            epochs=st.just(tuple(epochs)),
            body_bytes=st.just(len(body)),
            body=st.just(body),
            note=st.binary(max_size=50),
        )
    )
    assert isinstance(plain, BatchesMessage)
    return plain


@st.composite
def repairs(draw: st.DrawFn) -> RepairAnswer:
    """Batches of whoever has them intact, or none."""
    base = draw(st.integers(0, 2**63))
    body = draw(st.binary(max_size=300))
    end = base + draw(st.integers(1, 1000)) if body else base
    return RepairAnswer(Offset(base), Offset(end), len(body), body)


WITH_HANDLE: st.SearchStrategy[Any] = st.one_of(
    st.builds(Declare, TEXTS, TEXTS),
    st.builds(RefusedMessage, NUMBERS, st.sampled_from(FetchRefusal)),
    _with_numbers(FetchMessage, asks=st.booleans()),
    _with_numbers(DivergingMessage),
    _with_numbers(StartOverMessage, note=st.binary(max_size=50)),
    _with_numbers(RepairMessage),
    answers(),
    repairs(),
)
MESSAGES: st.SearchStrategy[tuple[int, WireMessage]] = st.one_of(
    st.tuples(HANDLES, WITH_HANDLE), st.tuples(st.just(0), st.sampled_from((Ping(), Pong())))
)


def encoded(message: WireMessage, handle: int) -> bytes:
    return encode(message, None if isinstance(message, Ping | Pong) else handle)


def sent(handle: int, message: WireMessage) -> bytes:
    """The bytes of a message and its body."""
    body = message.body if isinstance(message, BatchesMessage | RepairAnswer) else b""
    return encoded(message, handle) + body


def framed(header: bytes) -> bytes:
    return len(header).to_bytes(4, "little") + crc32c(header).to_bytes(4, "little") + header


def batches(body: bytes, base: int = 10, end: int = 12) -> BatchesMessage:
    return BatchesMessage(
        leader_epoch=LeaderEpoch(3),
        last_epoch=LeaderEpoch(2),
        base=Offset(base),
        next=Offset(end),
        high_watermark=Offset(9),
        body_bytes=len(body),
        epochs=((LeaderEpoch(3), Offset(base)),),
        body=body,
    )


@given(st.lists(MESSAGES, max_size=5), st.lists(st.integers(1, 120)))
def test_messages_arrive_as_they_left_in_any_pieces(
    messages: list[tuple[int, WireMessage]], cuts: list[int]
) -> None:
    data = b"".join(starmap(sent, messages))
    reader = WireReader()
    got: list[tuple[int, WireMessage]] = []
    for cut in [*cuts, len(data)]:
        got += fed(reader, data[:cut])
        data = data[cut:]
    assert got == messages


@given(st.lists(MESSAGES, max_size=4))
def test_messages_arrive_when_every_byte_comes_alone(messages: list[tuple[int, WireMessage]]) -> None:
    reader = WireReader()
    data = b"".join(starmap(sent, messages))
    assert [message for byte in data for message in fed(reader, bytes((byte,)))] == messages


@given(MESSAGES, st.data())
def test_a_flipped_bit_in_a_header_is_never_another_message(
    sending: tuple[int, WireMessage], data: st.DataObject
) -> None:
    handle, message = sending
    body = len(message.body) if isinstance(message, BatchesMessage | RepairAnswer) else 0
    frame = bytearray(sent(handle, message))
    place = data.draw(st.integers(0, (len(frame) - body) * 8 - 1))
    frame[place // 8] ^= 1 << place % 8
    try:
        got = fed(WireReader(), bytes(frame))
    except RemoteProtocolError:
        return
    assert got == [], "a longer length waits for more"


def test_a_body_of_many_megabytes_is_put_together_once() -> None:
    """In small pieces: a reader that copied what it has for each of them would not come to an end here."""
    message = batches(bytes(range(256)) * (64 * 4096))
    data = sent(1, message) + sent(0, Pong())
    assert len(data) > 64 << 20
    reader, got = WireReader(), list[tuple[int, WireMessage]]()
    for position in range(0, len(data), 4096):
        got += fed(reader, data[position : position + 4096])
    assert got == [(1, message), (0, Pong())]


def test_the_bytes_of_every_kind_of_message_stay_as_they_are() -> None:
    """Nodes of different versions speak with each other: what is sent today is read tomorrow."""
    fetch = FetchMessage(
        node_epoch=NodeEpoch(2),
        leader_epoch=LeaderEpoch(3),
        last_epoch=LeaderEpoch(4),
        log_end=Offset(5),
        synced_end=Offset(6),
        high_watermark=Offset(7),
        asks=True,
    )
    messages: dict[str, WireMessage] = {
        "01 01000000 0600 6f7264657273 0200 6931": Declare(StreamName("orders"), Incarnation("i1")),
        "02 01000000 " + " ".join(f"{number:02x}00000000000000" for number in range(2, 8)) + " 01": fetch,
        "03": Ping(),
        "04 01000000 "
        + " ".join(f"{number:02x}00000000000000" for number in (3, 2, 10, 12, 9, 0, 0))
        + " 02000000 00000000 0300000000000000 0a00000000000000": batches(b"xy"),
        "04 01000000 "
        + " ".join(f"{number:02x}00000000000000" for number in (3, 2, 10, 12, 9, 0, 0))
        + " 02000000 02000000 6e6f 0300000000000000 0a00000000000000": replace(batches(b"xy"), note=b"no"),
        "05 01000000 " + " ".join(f"{number:02x}00000000000000" for number in range(2, 7)): DivergingMessage(
            LeaderEpoch(2), LeaderEpoch(3), Offset(4), LeaderEpoch(5), Offset(6)
        ),
        "06 01000000 "
        + " ".join(f"{number:02x}00000000000000" for number in range(2, 6))
        + " 02000000 6e6f": StartOverMessage(LeaderEpoch(2), LeaderEpoch(3), Offset(4), Offset(5), b"no"),
        **{
            f"07 01000000 0200000000000000 {number:02x}": RefusedMessage(LeaderEpoch(2), reason)
            for number, reason in enumerate(FetchRefusal, 1)
        },
        "08": Pong(),
        "09 01000000 0200000000000000 0300000000000000": RepairMessage(Offset(2), Offset(3)),
        "0a 01000000 0200000000000000 0300000000000000 02000000": RepairAnswer(
            Offset(2), Offset(3), 2, b"xy"
        ),
    }
    assert [reason.value for reason in FetchRefusal] == [
        "other_leader_epoch",
        "old_node_epoch",
        "unknown_replica",
        "deposed",
        "not_leading",
        "no_lease",
        "cannot_read",
    ]
    for text, message in messages.items():
        assert encoded(message, 1) == framed(bytes.fromhex(text)), message


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        (b"", "no known kind"),
        (b"\x0b", "no known kind"),
        (b"\x03\0", "Ping makes no sense"),
        (b"\x02" + bytes(12), "FetchMessage makes no sense"),
        (b"\x01" + bytes(4) + b"\x05\0abc", "5 bytes wanted, 3 left"),
        (b"\x01" + bytes(4) + b"\x01\0\xff\0\0", "Declare makes no sense"),
        (b"\x04" + bytes(4 + 48 + 4 + 8), "BatchesMessage makes no sense"),
        (b"\x06" + bytes(4 + 32) + b"\x05\0\0\0abc", "5 bytes wanted, 3 there"),
        (b"\x07" + bytes(4 + 8), "RefusedMessage makes no sense"),
        (b"\x07" + bytes(4 + 8) + b"\x63", "RefusedMessage makes no sense"),
        (encode(batches(b""), 1)[8:], "from 10 to 12 in 0 bytes"),
        (encode(batches(b"x", 10, 10), 1)[8:], "from 10 to 10 in 1 bytes"),
        (encode(batches(b"x", 10, 9), 1)[8:], "from 10 to 9 in 1 bytes"),
    ],
)
def test_what_is_no_message_is_refused(header: bytes, problem: str) -> None:
    with pytest.raises(RemoteProtocolError, match=problem):
        fed(WireReader(), framed(header))


def test_lengths_that_no_message_has_are_refused_before_they_are_waited_for() -> None:
    with pytest.raises(RemoteProtocolError, match="a header of"):
        fed(WireReader(), (HEADER_BYTES_MAX + 1).to_bytes(4, "little") + bytes(4))
    header = bytearray(encode(batches(b"x"), 1)[8:])
    header[61:65] = (BODY_BYTES_MAX + 1).to_bytes(4, "little")
    with pytest.raises(RemoteProtocolError, match="a body of"):
        fed(WireReader(), framed(bytes(header)))


def test_after_its_end_a_reader_hands_on_nothing_more() -> None:
    reader, got = WireReader(), list[WireMessage]()

    def take(_handle: int, message: WireMessage) -> None:
        got.append(message)
        reader.end()

    data = sent(1, batches(b"x" * 100)) + sent(0, Pong())
    reader.feed(data, take)
    reader.feed(data, take)
    assert got == [batches(b"x" * 100)]


def test_what_could_not_be_read_is_not_sent() -> None:
    with pytest.raises(AssertionError, match="a body of"):
        encode(replace(batches(b""), body_bytes=BODY_BYTES_MAX + 1), 1)
    many = ((LeaderEpoch(1), Offset(1)),) * (HEADER_BYTES_MAX // 16)
    with pytest.raises(AssertionError, match="a header of"):
        encode(replace(batches(b""), epochs=many), 1)
