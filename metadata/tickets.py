"""Tickets: what a reader may do at a node's socket, signed with a key that all nodes of the cluster share.

A ticket is text, ``BODY.SIGNATURE``, both base64 for URLs without padding. The body is JSON with sorted keys
and no spaces; the signature is the HMAC-SHA-256 of the body's bytes. Each ticket has exactly one text: bits
that base64 does not use must be zero.

Source: RFC 2104 (HMAC), RFC 4648 section 5 (base64url).
"""

import hmac
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import ClassVar, Final

from pydantic import ConfigDict, TypeAdapter

from envelope.errors import InvalidTicket
from envelope.subjects import covers
from envelope.types import TimestampUs

TICKET_CHARS_MAX: Final = 4096
"""Of a ticket's text: names and a subject at their longest fit."""

SECRET_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class TicketKey:
    """A key that signs tickets; the secret is in no repr."""

    key_id: str
    secret: str = field(repr=False)
    """`SECRET_BYTES` bytes in hexadecimal."""
    made: TimestampUs
    """By the clock of the node that has drawn it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """The right to read streams, all of them or what is on a subject, or to be a member of a group."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    key_id: str
    """Of the key that signs it."""
    expires: TimestampUs
    stream: str | None = None
    """May be read; a partitioned stream with all its partitions. ``shop/*``: all streams directly in the
    namespace ``shop/``. None: nothing."""
    subject: str | None = None
    """A pattern: only records on subjects that match it. None: all of them."""
    group: str | None = None
    """Members may join it, and store its cursors. None: of no group."""

    @property
    def right(self) -> tuple[str | None, str | None, str | None]:
        """Stream, subject and group: all that it allows."""
        return self.stream, self.subject, self.group

    def is_good(self, keys: Iterable[TicketKey], now: TimestampUs, grace_us: int) -> bool:
        """Return whether it is taken ``now``: its key is there, its end ``grace_us`` ago at most."""
        return now <= self.expires + grace_us and any(key.key_id == self.key_id for key in keys)

    def covers_subject(self, subject: str | None) -> bool:
        """Return whether all records that match a pattern may be read; None: all records."""
        return self.subject is None or (subject is not None and covers(self.subject, subject))


_BODY: Final = TypeAdapter(Ticket)


def signed(ticket: Ticket, key: TicketKey) -> str:
    """Return the text of ``ticket``, which names ``key``."""
    assert ticket.key_id == key.key_id, f"ticket of key {ticket.key_id} signed with {key.key_id}"
    body = json.dumps(asdict(ticket), sort_keys=True, separators=(",", ":")).encode()
    return f"{_text(body)}.{_text(_signature(body, key))}"


def opened(text: str, keys: Iterable[TicketKey]) -> Ticket:
    """Return the ticket that ``text`` is, if one of ``keys`` has signed it; when it ends is not looked at.

    Raises:
        InvalidTicket: none of them has.
    """
    body_text, _, signature_text = text.partition(".")
    body, signature = _bytes(body_text), _bytes(signature_text)
    for key in keys:
        if hmac.compare_digest(_signature(body, key), signature):
            return _BODY.validate_json(body)
    raise InvalidTicket("this cluster has not signed the ticket, or has given its key up: ask for a new one")


def _signature(body: bytes, key: TicketKey) -> bytes:
    return hmac.digest(bytes.fromhex(key.secret), body, sha256)


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    """Return what `_text` made ``text`` of.

    Raises:
        InvalidTicket: it never did.
    """
    try:
        data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        data = b""
    if len(text) > TICKET_CHARS_MAX or not data or _text(data) != text:
        raise InvalidTicket("this is no ticket")
    return data
