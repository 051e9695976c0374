"""Gives out tickets to whom NATS lets ask, and makes the keys that sign them."""

import logging
import secrets
from datetime import timedelta
from typing import Final

from envelope.errors import InvalidTicket, RequestError
from envelope.subjects import first_level
from envelope.types import TimestampUs
from jetstream.node.runtime.clock import Clock
from metadata.api.requests import GroupTicketRequest, ReadTicketRequest, RotateKeyRequest, TicketRequest
from metadata.api.responses import utc
from metadata.api.ticket_responses import RotateKeyResponse, TicketNode, TicketResponse
from metadata.catalog.commands import RotateTicketKey
from metadata.node.catalogue.group import MetadataQuorum
from metadata.tickets import SECRET_BYTES, Ticket, TicketKey, opened, signed

_log = logging.getLogger(__name__)

_KEY_AGE_US: Final = 30 * 24 * 3600 * 1_000_000
"""Before the first ticket after that, a new key is made."""
_NODES_MAX: Final = 64
"""Nodes named beside a ticket: enough to find all others."""


class TicketOffice:
    """Answers requests for tickets, on any node; used on the loop's thread."""

    def __init__(self, metadata: MetadataQuorum, clock: Clock, lifetime: timedelta, grace: timedelta) -> None:
        """``lifetime``: of a ticket; ``grace``: how long one is good after its end."""
        self._metadata = metadata
        self._clock = clock
        self._lifetime_us = lifetime // timedelta(microseconds=1)
        self._grace_us = grace // timedelta(microseconds=1)

    async def answer(self, request: TicketRequest) -> TicketResponse | RotateKeyResponse:
        """Do what is asked.

        Raises:
            RequestError: a ticket for all levels of subjects is asked for without one for the first.
            InvalidTicket: that one is not good now.
            UnavailableError: a new key is needed, and the metadata log has no leader.
        """
        if isinstance(request, RotateKeyRequest):
            key = await self._rotated(revoke=request.revoke)
            return RotateKeyResponse(key_id=key.key_id, revoked=request.revoke)
        if isinstance(request, ReadTicketRequest):
            self._check_first_level(request)
        newest = self._newest()
        if newest is None or newest.made + _KEY_AGE_US < self._clock.wall():
            newest = await self._rotated(revoke=False)
        return self._granted(request, newest)

    def _check_first_level(self, request: ReadTicketRequest) -> None:
        wanted = None if request.subject is None else first_level(request.subject)
        if wanted is None:
            return
        if request.first_level is None:
            text = f"first_level: a ticket for {wanted!r} has to be shown to get one for {request.subject!r}"
            raise RequestError(text[:256], field="first_level")
        keys = self._metadata.catalog.ticket_keys
        shown = opened(request.first_level, keys)
        if shown.right != (request.stream, wanted, None):
            raise RequestError(f"first_level: the ticket is not for {wanted!r}"[:256], field="first_level")
        if not shown.is_good(keys, self._clock.wall(), self._grace_us):
            raise InvalidTicket("first_level: the ticket has ended: ask for a new one", stream=request.stream)

    def _newest(self) -> TicketKey | None:
        keys = self._metadata.catalog.ticket_keys
        return keys[-1] if keys else None

    async def _rotated(self, *, revoke: bool) -> TicketKey:
        """Return the key that signs from now on; another node's, where that was first."""
        before = self._newest()
        drawn = TicketKey(secrets.token_hex(8), secrets.token_hex(SECRET_BYTES), self._clock.wall())
        command = RotateTicketKey(drawn, None if before is None else before.key_id, revoke)
        (await self._metadata.propose(command)).answer()
        newest = self._newest()
        assert newest is not None, "a proposed key is applied here when its proposal is answered"
        text = "ticket key rotated key=%s before=%s revoked=%s"
        _log.info(text, newest.key_id, command.expected, revoke)
        return newest

    def _granted(self, request: ReadTicketRequest | GroupTicketRequest, key: TicketKey) -> TicketResponse:
        expires = TimestampUs(self._clock.wall() + self._lifetime_us)
        if isinstance(request, ReadTicketRequest):
            ticket = Ticket(
                key_id=key.key_id, expires=expires, stream=request.stream, subject=request.subject
            )
        else:
            ticket = Ticket(key_id=key.key_id, expires=expires, group=request.group)
        return TicketResponse(
            ticket=signed(ticket, key),
            expires=utc(expires),
            valid_s=self._lifetime_us / 1e6,
            nodes=[
                TicketNode(id=node.node_id, host=node.host, port=node.port)
                for node in self._metadata.catalog.nodes()[:_NODES_MAX]
            ],
        )
