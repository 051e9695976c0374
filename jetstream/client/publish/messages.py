"""The options of a message as NATS headers, and the JSON of a PubAck as values."""

import re
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import repeat
from typing import Any, Final, Literal, TypedDict

from pydantic_core import from_json

from envelope.errors import (
    InvalidHeader,
    JetstreamError,
    OffsetForgotten,
    RequestError,
    UnavailableError,
    registry,
)
from envelope.headers import (
    ACK,
    EXPECTED_LAST_MESSAGE_ID,
    EXPECTED_LAST_SEQUENCE,
    EXPECTED_STREAM,
    KEY,
    MESSAGE_ID,
    SEQUENCE,
    SEQUENCE_AFTER,
    SESSION,
    TOMBSTONE,
    TXID,
)


class PublishOptions(TypedDict, total=False):
    """The options of a message; all of them travel as NATS headers."""

    key: bytes | str | None
    """For compaction and partitioning. In a header it must be UTF-8 without line ends or outer spaces."""
    headers: Mapping[str, str] | None
    """The application's own NATS headers, stored with the record."""
    message_id: str | None
    """A repeat within the stream's dedupe window is acked with the original's offset."""
    session: str | None
    """The publisher's session that the message is of; see `JetstreamClient.session`."""
    sequence: int | None
    """The message's number in its session, from 1."""
    sequence_after: int | None
    """The number of the message before it, 0 before the first: refuse unless that one is the last stored."""
    txid: int | None
    """The application's own sequence, never decreasing within a stream."""
    tombstone: bool
    """Store the record without a value: the key is deleted. Also meant by ``value=None``."""
    expected_last_sequence: int | None
    """Refuse unless the stream's next offset is exactly this."""
    expected_last_message_id: str | None
    """Refuse unless the stream's last record has this message id."""
    stream: str | None
    """The stream whose ack is awaited, if several bind the subject; the others store and stay silent."""
    ack: Literal["leader", "all"] | None
    """The replicas that must hold the record before it is acked; None is the stream's own policy."""
    timeout: float
    """Seconds to wait for the ack; 5 if it is not given."""


@dataclass(frozen=True, slots=True)
class PublishAck:
    """The record is stored as its stream promises."""

    stream: str
    offset: int
    epoch: int
    """Leader epoch; 0 from a server that has none."""
    duplicate: bool = False
    """The message id was seen before: ``offset`` is the original's, and nothing was stored now."""
    count: int = 1
    """Records that were published together, in one batch envelope; ``offset`` is the last one's."""
    partition: int | None = None
    """The number of the partition that has it, if ``stream`` is one."""

    @property
    def first_offset(self) -> int:
        """Offset of the first of them."""
        return self.offset - self.count + 1

    @property
    def names(self) -> tuple[str, ...]:
        """Of the stream, and of the partitioned one that it is part of."""
        return names_of(self.stream, self.partition)


@dataclass(frozen=True, slots=True, eq=False)
class BatchAck(PublishAck):
    """The ack of a whole batch envelope; a server that stored it as a single record sends no count."""


@dataclass(frozen=True, slots=True)
class PublishRefusal:
    """The record is not stored."""

    stream: str
    error: JetstreamError
    partition: int | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """See `PublishAck.names`."""
        return names_of(self.stream, self.partition)


def names_of(stream: str, partition: int | None) -> tuple[str, ...]:
    """Return the names under which the answers of a stream may be waited for."""
    return (stream,) if partition is None else (stream, stream.removesuffix(f"/{partition}"))


_OPTION_HEADERS: Final = (
    ("key", KEY),
    ("message_id", MESSAGE_ID),
    ("session", SESSION),
    ("sequence", SEQUENCE),
    ("sequence_after", SEQUENCE_AFTER),
    ("txid", TXID),
    ("expected_last_sequence", EXPECTED_LAST_SEQUENCE),
    ("expected_last_message_id", EXPECTED_LAST_MESSAGE_ID),
    ("stream", EXPECTED_STREAM),
    ("ack", ACK),
)
"""Options and their headers, in the order in which they are sent."""

_HEADER_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
"""A token of RFC 9110, which nats-py and Go's clients take."""

_BY_ACK_CODE: Final[dict[int, type[JetstreamError]]] = {
    error.ack_code: error for error in registry().values()
}


def encode_options(value: bytes | None, options: PublishOptions) -> tuple[bytes, dict[str, str] | None]:
    """Return payload and NATS headers of a message.

    Raises:
        InvalidHeader: a value has characters that a NATS header cannot carry.
        RequestError: a tombstone with a value.
        TypeError: an option that does not exist.
    """
    if value is not None and not options:
        return value, None  # the plain message, which is most of them
    refuse_unknown(options, PublishOptions.__optional_keys__)
    headers = dict(options.get("headers") or ())
    tombstone = value is None or options.get("tombstone", False)
    if tombstone and value:
        raise RequestError("a tombstone has no value")
    for option, header in _OPTION_HEADERS:
        if (wanted := options.get(option)) is not None:
            headers[header] = _text(wanted)
    if tombstone:
        headers[TOMBSTONE] = "true"
    for name, text in headers.items():
        _check(name, text)
    return value or b"", headers or None


def header_block(headers: Mapping[str, str] | None) -> bytes:
    """Return the headers of `encode_options` as NATS carries them, empty if there are none."""
    if headers is None:
        return b""
    lines = [f"{name}: {text}\r\n" for name, text in headers.items()]
    return f"NATS/1.0\r\n{''.join(lines)}\r\n".encode()


def refuse_unknown(options: Mapping[str, object], known: Collection[str]) -> None:
    """Raise TypeError for an option that does not exist: a misspelt one must not be taken for the default."""
    if unknown := options.keys() - known:
        raise TypeError(
            f"unexpected options: {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}"
        )


def _text(option: object) -> str:
    if not isinstance(option, bytes):
        return str(option)
    try:
        return option.decode()
    except UnicodeDecodeError:
        raise InvalidHeader("a key in a NATS header must be UTF-8") from None


def _check(name: str, text: str) -> None:
    """Refuse what would end its line, or arrive without its outer spaces."""
    if not text.isprintable() or text != text.strip():
        raise InvalidHeader(f"{name}: {text!r} has line ends, outer spaces or unprintable characters")
    if not _HEADER_NAME.fullmatch(name):
        raise InvalidHeader(f"{name!r} is not a header name")


def plain_acks(
    streams: Sequence[bytes], offsets: Sequence[bytes], epochs: Sequence[bytes]
) -> list[PublishAck]:
    """Return the acks of the groups of `envelope.acks.PLAIN_ACK`, a column at a time.

    That takes a third of the time that a frozen dataclass takes for itself.
    """
    count = len(streams)
    names = {name: name.decode() for name in set(streams)}
    numbers = {epoch: int(epoch) for epoch in set(epochs)}
    columns: tuple[Iterable[object], ...] = (
        map(names.__getitem__, streams),
        map(int, offsets),
        map(numbers.__getitem__, epochs),
        repeat(False, count),
        repeat(1, count),
        repeat(None, count),
    )
    acks = list(map(PublishAck.__new__, repeat(PublishAck, count)))
    for field, column in zip(fields(PublishAck), columns, strict=True):
        member: Any = getattr(PublishAck, field.name)  # of the class: the descriptor of the slot
        deque(map(member.__set__, acks, column), maxlen=0)
    return acks


def parse_ack(payload: bytes) -> PublishAck | PublishRefusal | None:
    """Return the ack or the refusal in a reply to a publish; None if the reply is not from a stream."""
    try:
        document: object = from_json(payload)
    except ValueError:
        return None
    if not isinstance(document, dict):
        return None
    stream, sequence, error = document.get("stream"), document.get("seq"), document.get("error")
    number = document.get("partition")
    partition = number if type(number) is int else None
    if isinstance(error, dict):
        return PublishRefusal(
            stream if isinstance(stream, str) else "", _refusal(error, document.get("detail")), partition
        )
    is_repeat = document.get("duplicate") is True
    if not isinstance(stream, str) or type(sequence) is not int or sequence < (0 if is_repeat else 1):
        return None
    if sequence == 0:
        forgotten = OffsetForgotten(f"stored in {stream} so long ago that nobody knows where")
        return PublishRefusal(stream, forgotten, partition)
    offset, epoch, count = document.get("offset"), document.get("epoch"), document.get("count")
    records = count if type(count) is int and count > 0 else None
    return (PublishAck if records is None else BatchAck)(
        stream=stream,
        offset=offset if type(offset) is int else sequence - 1,
        epoch=epoch if type(epoch) is int else 0,
        duplicate=is_repeat,
        count=records or 1,
        partition=partition,
    )


def _refusal(error: dict[str, object], detail: object) -> JetstreamError:
    """Return the typed error for a NATS error body: by its number, else by its HTTP-like status."""
    code, status, description = error.get("err_code"), error.get("code"), error.get("description")
    known = _BY_ACK_CODE.get(code) if isinstance(code, int) else None
    if known is None:
        transient = isinstance(status, int) and status >= 500
        known = UnavailableError if transient else RequestError
    numbers = detail if isinstance(detail, dict) else {}
    refusal = known(description if isinstance(description, str) else "the message was refused")
    refusal.detail.update({name: each for name, each in numbers.items() if isinstance(each, int | str)})
    return refusal
