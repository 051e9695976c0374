"""The validation of a single message: what it asks for, who answers it, and whether it can be stored."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from envelope.acks import EchoingReply
from envelope.envelopes import Envelope, Kind, decode
from envelope.errors import (
    InvalidEnvelope,
    InvalidHeader,
    InvalidSubject,
    JetstreamError,
    RecordTooLarge,
    TxidTooFar,
    WrongExpectedStream,
)
from envelope.headers import (
    KEY,
    MESSAGE_ID,
    NO_HEADERS,
    TXID,
    PublishHeaders,
    only_message_ids,
    parse_header_block,
    publish_headers,
)
from envelope.limits import RECORD_BYTES_MAX, SUBJECT_BYTES_MAX
from envelope.types import AckPolicy, PartitionBy, StreamName
from jetstream.ingest.batches import BatchContent
from jetstream.ingest.messages import MessageBlock, Unread
from metadata.stream_config import StreamConfig

TOO_LARGE: Final = "message size exceeds maximum allowed"

Binds = Callable[[str, str], bool]
"""Whether the stream of that name is bound to the subject."""


class Addressee(Enum):
    """The stream that the publisher expects to answer."""

    THIS_STREAM = auto()
    ANOTHER_STREAM = auto()
    """Named in ``Nats-Expected-Stream`` and bound to the subject: this one stores and stays silent."""
    UNKNOWN_STREAM = auto()
    """Named, but not bound to the subject."""
    NO_STREAM = auto()
    """Nobody is named or asked, and this stream only listens (``ack: none``)."""


@dataclass(kw_only=True, slots=True)
class InspectedMessage:
    """A message with its headers read, those of NATS and those of an envelope."""

    headers: list[tuple[str, bytes]] | None
    """To be stored."""
    asked: PublishHeaders
    addressee: Addressee
    policy: AckPolicy
    """When it is answered; NONE: never, whatever happens to it."""
    reply: bytes
    """Subject of its ack or error, empty if none is sent."""
    refusal: JetstreamError | None
    """Why this stream cannot store it, whatever the log holds."""
    envelope: Envelope | None = None
    """What the payload is; None: the payload itself."""
    content: bytes | None = None
    """What is stored as the value; None: what the payload or the envelope says."""

    @property
    def records(self) -> int:
        """How many it becomes."""
        return 1 if self.envelope is None else self.envelope.records


class MessageValidator:
    """Reads messages as one stream, under its present configuration, has to understand them.

    Attributes:
        policy: when a message that does not say is answered.
        record_bytes_max: largest record taken.
    """

    def __init__(self, stream: StreamName, config: StreamConfig, binds: Binds) -> None:
        """Read messages for ``stream``."""
        self._stream = stream.encode()
        # Who expects the partitioned stream means whichever partition has the message.
        self._names = {self._stream, (config.partition_of or stream).encode()}
        self._sibling = None if config.partition_of is None else f"{config.partition_of}/".encode()
        self._binds = binds
        self.reconfigure(config)

    @property
    def txid_max_step(self) -> int | None:
        """How far above the last txid the next one may be; None: any distance."""
        return self._config.txid_max_step

    def reconfigure(self, config: StreamConfig) -> None:
        """Read by ``config`` from now on."""
        self._config = config
        self.policy: AckPolicy = config.ack
        self.record_bytes_max: int = config.record_bytes_max

    def odd_places(self, messages: MessageBlock) -> set[int]:
        """Return the places of messages with cookies or faults; of the others only the headers matter."""
        places = set(messages.cookies)
        bytes_max = self.record_bytes_max
        # The bytes of all messages together bound those of each.
        if messages.size_bytes > bytes_max:
            places.update(
                place for place, payload in enumerate(messages.payloads) if len(payload) > bytes_max
            )
        subjects = messages.subjects
        # LF is in no subject, and the bytes of no character reach across it.
        joined = b"\n".join(subjects)
        is_short = len(joined) <= SUBJECT_BYTES_MAX or max(map(len, subjects)) <= SUBJECT_BYTES_MAX
        if not is_short or not (joined.isascii() or _is_utf8(joined)):
            places.update(place for place, subject in enumerate(subjects) if _subject_problem(subject))
        return places

    def places_to_inspect(self, messages: MessageBlock) -> list[int]:
        """Return the places of messages with headers, cookies or faults, ascending; the others are plain."""
        places = self.odd_places(messages)
        if messages.has_headers:
            places.update(place for place, header in enumerate(messages.headers) if header is not None)
        return sorted(places)

    def only_identified(self, messages: MessageBlock) -> Sequence[bytes] | None:
        """Return the ids of messages without `odd_places` that have no other headers; None if one has."""
        return only_message_ids(messages.headers) if messages.size_bytes <= self.record_bytes_max else None

    def inspect(self, messages: MessageBlock, place: int) -> InspectedMessage:
        """Read the message at ``place``."""
        headers, asked, unreadable = _read_headers(messages.headers[place])
        envelope, misused = _opened(messages.payloads[place])
        payload_bytes, reply = len(messages.payloads[place]), messages.replies[place]
        if envelope is not None:
            headers, asked, misused = _merged(headers, envelope, is_partitioned_by_key=self._is_by_key)
            payload_bytes = envelope.size_bytes
            asked, reply = self._answered(asked, envelope, reply)
        subject = messages.subjects[place]
        addressee = self._addressee(asked, subject)
        silent = addressee is Addressee.ANOTHER_STREAM
        policy = AckPolicy.NONE if silent else asked.ack or self._config.ack
        reply = b"" if policy is AckPolicy.NONE else reply
        refusal = self._size_problem(messages, place, envelope) or unreadable or misused or asked.problem
        if (unstorable := _subject_problem(subject)) is not None:
            refusal = unstorable
        elif addressee is Addressee.UNKNOWN_STREAM:
            refusal = WrongExpectedStream("expected stream does not match")
        elif asked.tombstone and payload_bytes:
            refusal = refusal or InvalidHeader("a tombstone has no payload")
        return InspectedMessage(
            headers=headers,
            asked=asked,
            addressee=addressee,
            policy=policy,
            reply=reply,
            refusal=refusal,
            envelope=envelope,
        )

    def key_problem(self, message: InspectedMessage, content: BatchContent) -> InvalidEnvelope | None:
        """Return why the records of a batch are not all of this partition, None if they are."""
        if not self._is_by_key or not content.has_other_keys(message.asked.key):
            return None
        return InvalidEnvelope(f"{KEY}: the stream is partitioned by key, so a batch names its one key")

    def step_problem(self, content: BatchContent) -> TxidTooFar | None:
        """Return why the txids of a batch rise too fast, None if they do not."""
        step_max = self._config.txid_max_step
        if step_max is None or content.largest_txid_step() <= step_max:
            return None
        return TxidTooFar(f"a txid of the batch is more than {step_max} above the one before it")

    @property
    def _is_by_key(self) -> bool:
        return self._config.partition_by is PartitionBy.KEY

    def _answered(
        self, headers: PublishHeaders, envelope: Envelope, reply: bytes
    ) -> tuple[PublishHeaders, bytes]:
        """Return where to answer, and what that asks for: who names an inbox asks this stream."""
        if not reply and envelope.ack_inbox is not None:
            reply = envelope.ack_inbox
            if headers.ack is None and self._config.answers_only_on_request:
                headers = headers._replace(ack=AckPolicy.ALL)
        # Of every batch, also of one record: a count is how a publisher knows that its envelope was opened.
        records = envelope.records if envelope.kind is Kind.BATCH else None
        if reply and (envelope.correlation_id is not None or records is not None):
            reply = EchoingReply(reply, records, envelope.correlation_id)
        return headers, reply

    def _addressee(self, headers: PublishHeaders, subject: bytes) -> Addressee:
        if headers.expected_stream is None:
            only_listens = headers.ack is None and self._config.answers_only_on_request
            return Addressee.NO_STREAM if only_listens else Addressee.THIS_STREAM
        if headers.expected_stream in self._names:
            return Addressee.THIS_STREAM
        if self._sibling is not None and _is_partition(headers.expected_stream, self._sibling):
            return Addressee.UNKNOWN_STREAM  # the message is this partition's: nobody else stores it
        named = headers.expected_stream.decode(errors="replace")
        bound = self._binds(named, subject.decode(errors="replace"))
        return Addressee.ANOTHER_STREAM if bound else Addressee.UNKNOWN_STREAM

    def _size_problem(
        self, messages: MessageBlock, place: int, envelope: Envelope | None
    ) -> RecordTooLarge | None:
        header = messages.headers[place]
        size = len(messages.payloads[place]) + len(header or b"")
        if isinstance(header, Unread):
            size = header.message_bytes
            return RecordTooLarge(f"{TOO_LARGE}: {size} bytes, the limit is {RECORD_BYTES_MAX}")
        if envelope is not None:
            if envelope.kind is Kind.BATCH:
                return None  # the limit is for each of its records
            size = max(size, envelope.size_bytes)
        if size <= self.record_bytes_max:
            return None
        return RecordTooLarge(f"{TOO_LARGE}: {size} bytes, the limit is {self.record_bytes_max}")


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


def _opened(payload: bytes) -> tuple[Envelope | None, JetstreamError | None]:
    """Return the envelope that ``payload`` is; None if it is none, or one that cannot be taken."""
    try:
        return decode(payload), None
    except JetstreamError as error:
        return None, error


def _merged(
    headers: list[tuple[str, bytes]] | None, envelope: Envelope, *, is_partitioned_by_key: bool
) -> tuple[list[tuple[str, bytes]] | None, PublishHeaders, InvalidEnvelope | None]:
    """Return all headers, what they and the envelope ask for, and where these contradict each other.

    The message id is among the headers that are stored: so it is found again by whoever reads the log.
    """
    merged = [*(headers or ()), *envelope.headers]
    asked = publish_headers(merged)
    if envelope.message_id is not None and asked.message_id is None:
        # Whoever reads the log takes the first one: an empty one, which says nothing, would hide it.
        merged = [(name, value) for name, value in merged if name != MESSAGE_ID]
        merged.append((MESSAGE_ID, envelope.message_id))
    said = (asked.message_id, asked.key, asked.txid, asked.ack)
    fields = (envelope.message_id, envelope.key, envelope.txid, envelope.ack)
    contradicted = any(
        field is not None and header not in (None, field) for field, header in zip(fields, said, strict=True)
    )
    misused: InvalidEnvelope | None = None
    if contradicted:
        misused = InvalidEnvelope("the envelope and a header contradict each other")
    if envelope.message_id is not None and asked.session is not None:
        misused = InvalidEnvelope("a message has a message id or a session, not both")
    has_key = asked.key is not None and not is_partitioned_by_key
    if envelope.kind is Kind.BATCH and (has_key or asked.txid is not None or asked.tombstone):
        misused = InvalidEnvelope(f"a batch has no {KEY}, {TXID} or tombstone: its columns say that")
    asked = asked._replace(
        message_id=asked.message_id or envelope.message_id,
        key=asked.key if asked.key is not None else envelope.key,
        txid=asked.txid if asked.txid is not None else envelope.txid,
        ack=asked.ack or envelope.ack,
        tombstone=asked.tombstone or envelope.tombstone,
    )
    return merged or None, asked, misused


def _is_partition(name: bytes, prefix: bytes) -> bool:
    return name.startswith(prefix) and name[len(prefix) :].isdigit()


def _subject_problem(subject: bytes) -> InvalidSubject | None:
    """Return why no record can have the subject, None if one can."""
    if len(subject) > SUBJECT_BYTES_MAX:
        return InvalidSubject(f"the subject has {len(subject)} bytes, the limit is {SUBJECT_BYTES_MAX}")
    return None if _is_utf8(subject) else InvalidSubject("the subject is not UTF-8")


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
