"""One message looked at alone: what it asks for, who answers it, and whether it can be stored at all."""

from collections.abc import Callable
from enum import Enum, auto
from typing import NamedTuple

from envelope.errors import (
    InvalidHeader,
    InvalidSubject,
    JetstreamError,
    RecordTooLarge,
    WrongExpectedStream,
)
from envelope.headers import NO_HEADERS, PublishHeaders, parse_header_block, publish_headers
from envelope.types import AckPolicy, StreamName
from jetstream.ingest.messages import MessageBlock
from metadata.stream_config import StreamConfig

Binds = Callable[[str, str], bool]
"""Whether the stream of that name is bound to the subject."""


class Addressee(Enum):
    """Whom the publisher means to answer."""

    THIS_STREAM = auto()
    ANOTHER_STREAM = auto()
    """Named in ``Nats-Expected-Stream`` and bound to the subject: this one stores and stays silent."""
    UNKNOWN_STREAM = auto()
    """Named, but not bound to the subject."""
    NO_STREAM = auto()
    """Nobody is named or asked, and this stream only listens (``ack: none``)."""


class InspectedMessage(NamedTuple):
    """A message with its headers read."""

    headers: list[tuple[str, bytes]] | None
    asked: PublishHeaders
    addressee: Addressee
    policy: AckPolicy
    """When it is answered; NONE: never, whatever happens to it."""
    told: bytes
    """Reply subject of who hears what becomes of it, empty if nobody does."""
    refusal: JetstreamError | None
    """Why this stream cannot store it, whatever the log holds."""


class Intake:
    """Reads messages as one stream, under its present configuration, has to understand them."""

    def __init__(self, stream: StreamName, config: StreamConfig, binds: Binds) -> None:
        """Read messages for ``stream``."""
        self._stream = stream.encode()
        self._config = config
        self._binds = binds

    @property
    def policy(self) -> AckPolicy:
        """When a message that does not say is answered."""
        return self._config.ack

    def reconfigure(self, config: StreamConfig) -> None:
        """Read by ``config`` from now on."""
        self._config = config

    def places_to_inspect(self, messages: MessageBlock) -> list[int]:
        """Return the places of messages with headers or faults, ascending; the others are plain and fine."""
        places: set[int] = set()
        if messages.headers.count(None) != len(messages):
            places.update(place for place, header in enumerate(messages.headers) if header is not None)
        bytes_max = self._config.record_bytes_max
        # The bytes of all messages together bound those of each.
        if messages.size_bytes > bytes_max:
            places.update(
                place for place, payload in enumerate(messages.payloads) if len(payload) > bytes_max
            )
        # LF is in no subject, and the bytes of no character reach across it.
        if not _is_utf8(b"\n".join(messages.subjects)):
            places.update(place for place, subject in enumerate(messages.subjects) if not _is_utf8(subject))
        return sorted(places)

    def inspect(self, messages: MessageBlock, place: int) -> InspectedMessage:
        """Read the message at ``place``."""
        headers, asked, unreadable = _read_headers(messages.headers[place])
        subject = messages.subjects[place]
        addressee = self._addressee(asked, subject)
        silent = addressee is Addressee.ANOTHER_STREAM
        policy = AckPolicy.NONE if silent else asked.ack or self._config.ack
        told = b"" if policy is AckPolicy.NONE else messages.replies[place]
        refusal = self._size_problem(messages, place) or unreadable or asked.problem
        if not _is_utf8(subject):
            refusal = InvalidSubject("the subject is not UTF-8")
        elif addressee is Addressee.UNKNOWN_STREAM:
            refusal = WrongExpectedStream("expected stream does not match")
        elif asked.tombstone and messages.payloads[place]:
            refusal = refusal or InvalidHeader("a tombstone has no payload")
        return InspectedMessage(headers, asked, addressee, policy, told, refusal)

    def _addressee(self, asked: PublishHeaders, subject: bytes) -> Addressee:
        if asked.expected_stream is None:
            only_listens = asked.ack is None and self._config.answers_only_on_request
            return Addressee.NO_STREAM if only_listens else Addressee.THIS_STREAM
        if asked.expected_stream == self._stream:
            return Addressee.THIS_STREAM
        named = asked.expected_stream.decode(errors="replace")
        bound = self._binds(named, subject.decode(errors="replace"))
        return Addressee.ANOTHER_STREAM if bound else Addressee.UNKNOWN_STREAM

    def _size_problem(self, messages: MessageBlock, place: int) -> RecordTooLarge | None:
        size = len(messages.payloads[place]) + len(messages.headers[place] or b"")
        if size <= self._config.record_bytes_max:
            return None
        limit = self._config.record_bytes_max
        return RecordTooLarge(f"message size exceeds maximum allowed: {size} bytes, the limit is {limit}")


def _read_headers(
    raw: bytes | None,
) -> tuple[list[tuple[str, bytes]] | None, PublishHeaders, InvalidHeader | None]:
    if raw is None:
        return None, NO_HEADERS, None
    try:
        headers = parse_header_block(raw)
    except InvalidHeader as error:
        return None, NO_HEADERS, error
    return headers or None, publish_headers(headers), None


def _is_utf8(text: bytes) -> bool:
    if text.isascii():
        return True
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
