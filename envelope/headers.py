r"""NATS message headers: the names that mean something to us, and the header block's layout.

A block is ``NATS/1.0`` and an optional status, CR LF, then ``name: value`` CR LF for each header, then CR LF.
Names are case-sensitive, as in nats-server; of a repeated name of ours the first one counts, all are kept.

Sources: NATS ADR-4 (message headers); nats-server ``server/stream.go`` for the ``Nats-`` names.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from envelope.errors import InvalidHeader, JetstreamError, Unsupported
from envelope.limits import KIB, MESSAGE_ID_BYTES_MAX, SESSION_ID_BYTES_MAX
from envelope.types import AckPolicy

MESSAGE_ID: Final = "Nats-Msg-Id"
EXPECTED_STREAM: Final = "Nats-Expected-Stream"
EXPECTED_LAST_SEQUENCE: Final = "Nats-Expected-Last-Sequence"
EXPECTED_LAST_MESSAGE_ID: Final = "Nats-Expected-Last-Msg-Id"
KEY: Final = "Jetstream-Key"
TXID: Final = "Jetstream-Txid"
ACK: Final = "Jetstream-Ack"
TOMBSTONE: Final = "Jetstream-Tombstone"
SESSION: Final = "Jetstream-Session"
SEQUENCE: Final = "Jetstream-Sequence"
SEQUENCE_AFTER: Final = "Jetstream-Sequence-After"
BATCH_RECORDS: Final = "Jetstream-Batch-Records"
"""Written by the node, on the last record of a batch that came in one envelope: how many they are."""
SOURCE_PREFIX: Final = "Jetstream-Source-"
"""Begins the names of headers that a mirror gives to its copies."""
SOURCE_TIME: Final = f"{SOURCE_PREFIX}Time"
"""Written by a mirror, behind a record's others: its time in the source, in microseconds since 1970."""
REQUEST_INFO: Final = "Nats-Request-Info"
"""Written by nats-server where a message crosses into another account by an import: who has sent it."""

UNSUPPORTED_HEADERS: Final = frozenset(
    {
        "Nats-Expected-Last-Subject-Sequence",
        "Nats-Expected-Last-Subject-Sequence-Subject",
        "Nats-Rollup",
        "Nats-TTL",
        "Nats-Batch-Id",
        "Nats-Incr",
        "Nats-Schedule",
    }
)
"""Headers that change what NATS JetStream stores or checks. Ignoring them would break a promise: refused."""

HEADER_BLOCK_BYTES_MAX: Final = 64 * KIB
"""One message's header block; it is taken apart in Python, so it must not be large."""

_VERSION: Final = b"NATS/1.0"
_OURS: Final = frozenset(
    {
        MESSAGE_ID,
        EXPECTED_STREAM,
        EXPECTED_LAST_SEQUENCE,
        EXPECTED_LAST_MESSAGE_ID,
        KEY,
        TXID,
        ACK,
        TOMBSTONE,
        SESSION,
        SEQUENCE,
        SEQUENCE_AFTER,
        BATCH_RECORDS,
    }
    | UNSUPPORTED_HEADERS
)
MESSAGE_HEADERS: Final = _OURS
"""What is said of a message as a whole: so not of one record of a batch."""

_ONLY_MESSAGE_ID: Final = re.compile(
    rb"NATS/1\.0\r\nNats-Msg-Id: ([^ \t\r\n][^\r\n]{0,%d})\r\n\r\n" % (MESSAGE_ID_BYTES_MAX - 1)
)
_KEY_LINE: Final = b"\r\n%b:" % KEY.encode()
_AROUND_MESSAGE_ID: Final = len(b"NATS/1.0\r\nNats-Msg-Id: \r\n\r\n")
_SEQUENCE: Final = re.compile(rb"[0-9]{1,20}")
_INTEGER: Final = re.compile(rb"-?[0-9]{1,19}")
_SESSION_SEQUENCE: Final = re.compile(rb"[0-9]{1,19}")
_INT64_MAX: Final = (1 << 63) - 1
_FLAGS: Final = {b"": True, b"1": True, b"true": True, b"0": False, b"false": False}
_ACK_POLICIES: Final = {policy.value.encode(): policy for policy in AckPolicy}


def parse_header_block(raw: bytes) -> list[tuple[str, bytes]]:
    """Return names and values in their order, repeated names included.

    A value is what follows the colon without leading spaces and tabs; everything else is kept as it is. An
    inline status after ``NATS/1.0`` is not a header and is left out.

    Raises:
        InvalidHeader: too long, no version, a line without colon or name, a name that is not UTF-8, no end.
    """
    if len(raw) > HEADER_BLOCK_BYTES_MAX:
        raise InvalidHeader(f"header block has {len(raw)} bytes, the limit is {HEADER_BLOCK_BYTES_MAX}")
    version, *lines = raw.split(b"\r\n")
    if version.split(b" ", 1)[0] != _VERSION or lines[-2:] != [b"", b""]:
        raise InvalidHeader("header block does not begin with NATS/1.0 and end with an empty line")
    headers: list[tuple[str, bytes]] = []
    for line in lines[:-2]:
        name, colon, value = line.partition(b":")
        if not colon or not name:
            raise InvalidHeader(f"header line {line[:64]!r} has no name or no colon")
        try:
            headers.append((name.decode(), value.lstrip(b" \t")))
        except UnicodeDecodeError:
            raise InvalidHeader(f"header name {name[:64]!r} is not UTF-8") from None
    return headers


def header_block(name: str, value: str) -> bytes:
    """Return the header block of a message with one header; its parts hold no CR and no LF."""
    return b"%b\r\n%b: %b\r\n\r\n" % (_VERSION, name.encode(), value.encode())


def key_in(block: bytes) -> bytes | None:
    """Return the value of ``Jetstream-Key`` in a header block, as `publish_headers` does; None without one.

    Of a block that `parse_header_block` refuses it returns something, and for equal bytes the same.
    """
    start = block.find(_KEY_LINE)
    if start < 0:
        return None
    start += len(_KEY_LINE)
    end = block.find(b"\r\n", start)
    return (block[start:end] if end >= 0 else block[start:]).lstrip(b" \t")


def only_message_ids(blocks: Sequence[bytes | None]) -> list[bytes] | None:
    """Return the message ids of header blocks that have one each and nothing else; None if one is another.

    They are what `parse_header_block` and `publish_headers` find, at a tenth of the cost.
    """
    if None in blocks:
        return None
    ids: list[bytes] = _ONLY_MESSAGE_ID.findall(b"".join(blocks))  # type: ignore[arg-type]  # None is not in it
    # What was found ends where each block does, and so is all that there is.
    if list(map(len, blocks)) != [len(message_id) + _AROUND_MESSAGE_ID for message_id in ids]:  # type: ignore[arg-type]
        return None
    return ids


class SessionPlace(NamedTuple):
    """The place of a message in its publisher's session.

    A message that names the one before it is stored only behind that one: so a publisher may have many on
    their way, and lose none. A message that names none is stored behind all with a lower number.
    """

    session: bytes
    sequence: int
    """From 1; increases from message to message of a session."""
    after: int | None
    """The number of the message before it, 0 if there is none: then it begins the session."""


class PublishHeaders(NamedTuple):
    """The requests in a message's headers; None where there is none.

    A bad value does not hide the others: ``expected_stream`` and ``ack`` still tell who answers.
    """

    message_id: bytes | None = None
    expected_stream: bytes | None = None
    expected_last_sequence: int | None = None
    """Offset of the stream's last record + 1; 0 means that the stream has none."""
    expected_last_message_id: bytes | None = None
    key: bytes | None = None
    txid: int | None = None
    ack: AckPolicy | None = None
    tombstone: bool = False
    session: SessionPlace | None = None
    problem: JetstreamError | None = None
    """Why no stream may store the message."""
    bad_expectation: JetstreamError | None = None
    """Why the stream that answers must not store it; others ignore expectations."""


NO_HEADERS: Final = PublishHeaders()


def publish_headers(headers: Sequence[tuple[str, bytes]]) -> PublishHeaders:
    """Read the headers of ours among ``headers``; never raises, see `PublishHeaders`.

    An empty ``Nats-`` value is none at all, as in nats-server.
    """
    found: dict[str, bytes] = {}
    for name, value in headers:
        if name in _OURS:
            found.setdefault(name, value)
    if not found:
        return NO_HEADERS
    if len(found) == 1 and 0 < len(found.get(MESSAGE_ID, b"")) <= MESSAGE_ID_BYTES_MAX:
        return PublishHeaders(found[MESSAGE_ID])  # the common case, at a third of the cost
    session, problem = _session(found)
    problem = _problem(found) or problem
    bad_expectation = _bad_expectation(found)
    txid, last_sequence = found.get(TXID), found.get(EXPECTED_LAST_SEQUENCE)
    return PublishHeaders(
        message_id=found.get(MESSAGE_ID) or None,
        expected_stream=found.get(EXPECTED_STREAM) or None,
        expected_last_sequence=int(last_sequence) if last_sequence and not bad_expectation else None,
        expected_last_message_id=found.get(EXPECTED_LAST_MESSAGE_ID) or None,
        key=found.get(KEY),
        txid=int(txid) if txid is not None and not problem else None,
        # A message that names a policy unknown to us does ask for an answer: that it is unknown.
        ack=_ACK_POLICIES.get(found[ACK], AckPolicy.ALL) if ACK in found else None,
        tombstone=_FLAGS.get(found[TOMBSTONE], False) if TOMBSTONE in found else False,
        session=None if problem else session,
        problem=problem,
        bad_expectation=bad_expectation,
    )


def session_place(headers: Mapping[str, bytes]) -> SessionPlace | None:
    """Return the place in a session that ``headers`` name, None if they name no session.

    Raises:
        InvalidHeader: a value is outside its grammar, or a header lacks another.
    """
    session, sequence, after = headers.get(SESSION), headers.get(SEQUENCE), headers.get(SEQUENCE_AFTER)
    if session is None:
        if sequence is not None or after is not None:
            raise InvalidHeader(f"a sequence is one of a session: {SESSION} is missing")
        return None
    if not 0 < len(session) <= SESSION_ID_BYTES_MAX:
        raise InvalidHeader(
            f"{SESSION} has {len(session)} bytes, there are at least 1 and at most {SESSION_ID_BYTES_MAX}"
        )
    if not _SESSION_SEQUENCE.fullmatch(sequence or b"") or not 1 <= int(sequence or b"") <= _INT64_MAX:
        raise InvalidHeader(f"{SEQUENCE} must be a number from 1 to {_INT64_MAX}")
    place = SessionPlace(session, int(sequence or b""), None)
    if after is None:
        return place
    if not _SESSION_SEQUENCE.fullmatch(after) or int(after) >= place.sequence:
        raise InvalidHeader(f"{SEQUENCE_AFTER} must be a number from 0 that is below the {SEQUENCE}")
    return place._replace(after=int(after))


def _session(headers: Mapping[str, bytes]) -> tuple[SessionPlace | None, InvalidHeader | None]:
    try:
        place = session_place(headers)
    except InvalidHeader as error:
        return None, error
    if place is not None and headers.get(MESSAGE_ID):
        return None, InvalidHeader(f"a message has a {MESSAGE_ID} or a {SESSION}, not both")
    return place, None


def _problem(headers: Mapping[str, bytes]) -> InvalidHeader | None:
    message_id, txid = headers.get(MESSAGE_ID, b""), headers.get(TXID, b"0")
    if len(message_id) > MESSAGE_ID_BYTES_MAX:
        return InvalidHeader(f"{MESSAGE_ID} has {len(message_id)} bytes, the limit is {MESSAGE_ID_BYTES_MAX}")
    if not _INTEGER.fullmatch(txid) or not -_INT64_MAX - 1 <= int(txid) <= _INT64_MAX:
        return InvalidHeader(f"{TXID} must be a signed 64-bit number")
    if headers.get(ACK, b"all") not in _ACK_POLICIES:
        return InvalidHeader(f"{ACK} must be none, leader or all")
    if headers.get(TOMBSTONE, b"true") not in _FLAGS:
        return InvalidHeader(f"{TOMBSTONE} must be true or false")
    if BATCH_RECORDS in headers:
        return InvalidHeader(f"{BATCH_RECORDS} is written by the node alone")
    return None


def _bad_expectation(headers: Mapping[str, bytes]) -> JetstreamError | None:
    if not _SEQUENCE.fullmatch(headers.get(EXPECTED_LAST_SEQUENCE) or b"0"):
        return InvalidHeader(f"{EXPECTED_LAST_SEQUENCE} must be a number from 0")
    for name in headers:
        if name in UNSUPPORTED_HEADERS:
            return Unsupported(f"header {name} is not supported")
    return None
