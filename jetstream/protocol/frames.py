"""Frames: how bytes on a socket become headers and bodies, and back.

====== ==== =====================================================================
offset size field
====== ==== =====================================================================
0      4    header length, unsigned little-endian; 1 … ``FRAME_HEADER_BYTES_MAX``
4      8    body length, unsigned little-endian
12     …    header, one JSON object in UTF-8
…      …    body
====== ==== =====================================================================

`FrameReader` takes any chunking. It never holds more than one header, and one body whose length it
checked before it made room for it. A body may be filled in place (`FrameReader.body_window`), so that
a reader's bytes are copied once, by the kernel.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from envelope.errors import RemoteProtocolError
from envelope.limits import FRAME_HEADER_BYTES_MAX

PREFIX: Final = struct.Struct("<IQ")
_TLS_HANDSHAKES: Final = (0x010316, 0x030316)
"""The first three bytes of a TLS ClientHello, read as a header length."""


@dataclass(frozen=True, slots=True)
class HeadReceived:
    """A header is complete; ``body_length`` bytes follow before the next frame."""

    header: bytes
    body_length: int


@dataclass(frozen=True, slots=True)
class BodyReceived:
    """The body of the last header is complete; the receiver owns it. Empty bodies are told too."""

    body: memoryview


@dataclass(frozen=True, slots=True)
class FrameRefused:
    """A length was outside the limits; nothing more is read."""

    error: RemoteProtocolError


FrameEvent = HeadReceived | BodyReceived | FrameRefused


def encode_head(header: bytes, body_length: int = 0) -> bytes:
    """Return prefix and header of a frame; the caller sends ``body_length`` bytes right after."""
    assert 0 < len(header) <= FRAME_HEADER_BYTES_MAX, f"P1: header of {len(header)} bytes"
    assert body_length >= 0, f"P1: body of {body_length} bytes"
    return PREFIX.pack(len(header), body_length) + header


def _zeroed(length: int) -> memoryview:
    return memoryview(bytearray(length))


class FrameReader:
    """Cuts a byte stream into frames.

    Invariants:
        P1: a frame has a header within its limit and a body length that is not negative.
        P2: the pending bytes are less than one prefix and header, or a body is being filled, not both.
        P3: after `FrameRefused` nothing more is read.
            Held by test_frames_before_a_bad_one_in_the_same_read_are_kept.
    """

    def __init__(
        self, header_bytes_max: int, body_bytes_max: int, allocate: Callable[[int], memoryview] = _zeroed
    ) -> None:
        """Refuse longer headers and bodies; ``allocate`` makes the writable room for one body."""
        self._header_bytes_max = header_bytes_max
        self._body_bytes_max = body_bytes_max
        self._allocate = allocate
        self._pending = bytearray()
        self._body: memoryview | None = None
        self._filled = 0
        self._refused = False

    @property
    def mid_frame(self) -> bool:
        """Whether a frame has begun and is not complete."""
        return self._body is not None or bool(self._pending)

    def body_window(self) -> memoryview | None:
        """Return the unfilled part of the current body, or None between bodies."""
        return None if self._body is None else self._body[self._filled :]

    def body_filled(self, count: int) -> list[FrameEvent]:
        """Say that the first ``count`` bytes of `body_window` have been written."""
        assert self._body is not None, "P2: no body is being filled"
        self._filled += count
        assert self._filled <= len(self._body), "P2: a body is filled to its length"
        if self._filled < len(self._body):
            return []
        body, self._body = self._body, None
        return [BodyReceived(body)]

    def feed(self, data: bytes | memoryview) -> list[FrameEvent]:
        """Take in any bytes and return what they complete; however they are cut, the events are the same."""
        events: list[FrameEvent] = []
        rest = memoryview(data)
        try:
            while rest and not self._refused:
                rest = self._feed_head(rest, events) if self._body is None else self._feed_body(rest, events)
        except RemoteProtocolError as error:
            self._refused = True
            events.append(FrameRefused(error))
        return events

    def _feed_body(self, data: memoryview, events: list[FrameEvent]) -> memoryview:
        window = self.body_window()
        assert window is not None, "P2: a body is being filled"
        count = min(len(window), len(data))
        window[:count] = data[:count]
        events.extend(self.body_filled(count))
        return data[count:]

    def _feed_head(self, data: memoryview, events: list[FrameEvent]) -> memoryview:
        wanted = self._head_length() - len(self._pending)
        self._pending += data[:wanted]
        rest = data[wanted:]
        if len(self._pending) < self._head_length():
            return rest
        _, body_length = PREFIX.unpack_from(self._pending)
        events.append(HeadReceived(bytes(self._pending[PREFIX.size :]), body_length))
        self._pending.clear()
        self._body, self._filled = self._allocate(body_length), 0
        if body_length == 0:
            events.extend(self.body_filled(0))
        return rest

    def _head_length(self) -> int:
        """Return the length of prefix and header, as far as it is known yet."""
        if len(self._pending) < PREFIX.size:
            return PREFIX.size
        header_length, body_length = PREFIX.unpack_from(self._pending)
        # Checked as soon as the prefix is there: nothing of an oversized frame is ever gathered.
        if not 0 < header_length <= self._header_bytes_max:
            if header_length & 0xFFFFFF in _TLS_HANDSHAKES:
                raise RemoteProtocolError("the peer speaks TLS, which is not spoken here")
            raise RemoteProtocolError(
                f"frame header of {header_length} bytes, allowed are 1 to {self._header_bytes_max}"
            )
        if body_length > self._body_bytes_max:
            raise RemoteProtocolError(
                f"frame body of {body_length} bytes, allowed are at most {self._body_bytes_max}"
            )
        return PREFIX.size + int(header_length)
