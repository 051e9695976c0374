"""Frames: bytes to headers and bodies, whatever the chunks."""

import pytest

from envelope.errors import RemoteProtocolError
from jetstream.protocol.frames import (
    PREFIX,
    BodyReceived,
    FrameEvent,
    FrameReader,
    FrameRefused,
    HeadReceived,
    encode_head,
)


def a_reader() -> FrameReader:
    return FrameReader(header_bytes_max=100, body_bytes_max=1000)


def contents(events: list[FrameEvent]) -> list[bytes]:
    return [
        event.header if isinstance(event, HeadReceived) else bytes(event.body)
        for event in events
        if not isinstance(event, FrameRefused)
    ]


def refusal(events: list[FrameEvent]) -> RemoteProtocolError:
    last = events[-1]
    assert isinstance(last, FrameRefused)
    return last.error


def test_the_prefix_is_twelve_bytes_little_endian() -> None:
    assert PREFIX.size == 12
    assert encode_head(b"{}", 258) == bytes.fromhex("020000000201000000000000") + b"{}"


def test_several_frames_in_one_read_come_out_in_order() -> None:
    data = encode_head(b"a", 3) + b"xyz" + encode_head(b"b") + encode_head(b"c", 1) + b"1"
    assert contents(a_reader().feed(data)) == [b"a", b"xyz", b"b", b"", b"c", b"1"]


def test_a_frame_may_arrive_byte_by_byte() -> None:
    reader = a_reader()
    events: list[FrameEvent] = []
    for byte in encode_head(b"header", 4) + b"body":
        events += reader.feed(bytes([byte]))
        assert reader.mid_frame == (len(events) < 2)
    assert contents(events) == [b"header", b"body"]
    assert not reader.mid_frame


def test_a_body_can_be_filled_in_place() -> None:
    reader = a_reader()
    assert reader.body_window() is None
    assert reader.feed(encode_head(b"h", 5) + b"ab") == [HeadReceived(b"h", 5)]
    window = reader.body_window()
    assert window is not None
    assert len(window) == 3
    window[:3] = b"cde"
    assert reader.body_filled(1) == []
    (event,) = reader.body_filled(2)
    assert isinstance(event, BodyReceived)
    assert bytes(event.body) == b"abcde"
    assert reader.body_window() is None


@pytest.mark.parametrize("length", [0, 101, 0xFFFF_FFFF])
def test_a_header_length_outside_the_limits_is_refused_before_the_header_arrives(length: int) -> None:
    reader = a_reader()
    events = reader.feed(PREFIX.pack(length, 0))
    assert str(length) in refusal(events).description
    assert reader.feed(encode_head(b"late")) == []


def test_a_body_longer_than_allowed_is_refused_before_room_is_made() -> None:
    reader = FrameReader(100, 10, allocate=lambda _: pytest.fail("no room may be made"))
    assert "11" in refusal(reader.feed(encode_head(b"h", 11))).description


def test_frames_before_a_bad_one_in_the_same_read_are_kept() -> None:
    events = a_reader().feed(encode_head(b"good") + PREFIX.pack(0, 0))
    assert contents(events) == [b"good", b""]
    refusal(events)


@pytest.mark.parametrize("version", [b"\x01", b"\x03"])
def test_a_peer_that_speaks_tls_is_named(version: bytes) -> None:
    hello = b"\x16\x03" + version + b"\x02\x00\x01\x00\x01\xfc\x03\x03\x00\x00"
    assert "TLS" in str(refusal(a_reader().feed(hello)))
    # The same two bytes may begin a frame of ours: a header of 790 bytes.
    assert FrameReader(header_bytes_max=1000, body_bytes_max=0).feed(b"\x16\x03\x00\x00" + bytes(8)) == []
