"""The audit of a node: a line in its log for each change that was requested, and a record of the same.

The record is published on the subject of the internal stream ``__audit`` as any publisher would do it, with a
message id, again and again until it is acked: so a leader that changes, a majority that is missing and a
repeat are those of every stream. No change waits for its record, or fails for want of it.
"""

import asyncio
import logging
import secrets
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Final

from envelope.errors import UnavailableError
from envelope.headers import MESSAGE_ID, header_block
from envelope.internal_streams import audit_subject
from envelope.types import NodeId
from jetstream.client.publish.messages import PublishAck, parse_ack
from jetstream.node.nats.link import NatsLink
from jetstream.node.settings.node_config import AuditConfig
from metadata.api.audit import AuditEvent, encode_event

_audit: Final = logging.getLogger("jetstream.audit")
_log = logging.getLogger(__name__)

_WAITING_MAX: Final = 4096
"""Records of a kilobyte at most, unless their texts are to be escaped."""
_REFUSED_SHARE: Final = 2
"""Records of refused requests, of which anybody can cause any number, may fill one half of the room."""
_AT_ONCE: Final = 64
_ACK_SECONDS: Final = 5.0
_PAUSE_SECONDS_MIN: Final = 0.1
_PAUSE_SECONDS_MAX: Final = 5.0
_STOP_SECONDS: Final = 1.0


@dataclass(slots=True)
class AuditCounters:
    """Counts of records since the start of the node."""

    stored: int = 0
    dropped: int = 0
    """Those for which there was no room."""


@dataclass(frozen=True, slots=True)
class _Record:
    number: str
    operation: str
    line: str


class AuditTrail:
    """Of one node; used on the loop's thread.

    Attributes:
        settings: whether there are records, and for how long.
        counters: of the records.
        waiting: records that are not acked yet.
    """

    def __init__(self, settings: AuditConfig, api_prefix: str, node_id: NodeId, link: NatsLink) -> None:
        self.settings = settings
        self.counters = AuditCounters()
        self._prefix = api_prefix
        self._node_id = node_id
        self._link = link
        self._start = secrets.token_hex(8)
        """The numbers of another start, or of a node whose id was given away, are other ones."""
        self._numbers = count()
        self._queue: asyncio.Queue[_Record] = asyncio.Queue()
        self.waiting = 0

    def note(self, event: AuditEvent) -> None:
        """Log a change, and put it on record if that is enabled; returns at once."""
        number = f"{self._node_id}-{self._start}-{next(self._numbers)}"
        line = encode_event(event, self._node_id, number)
        # A change that took place costs more than its line: none is left out, however many there are.
        _audit.info("%s", line, extra={"is_limited": event.error is not None})
        if not self.settings.enabled:
            return
        if self.waiting >= (_WAITING_MAX if event.error is None else _WAITING_MAX // _REFUSED_SHARE):
            self.counters.dropped += 1
            _log.warning("no room for an audit record id=%s waiting=%d", number, self.waiting)
            return
        self.waiting += 1
        self._queue.put_nowait(_Record(number, event.operation, line))

    async def run(self) -> None:
        """Store the records in their order, those that wait together, until cancelled."""
        while True:
            records = [await self._queue.get()]
            while len(records) < _AT_ONCE and not self._queue.empty():
                records.append(self._queue.get_nowait())
            async with asyncio.TaskGroup() as tasks:
                for record in records:
                    tasks.create_task(self._store(record))

    async def stop(self) -> None:
        """Give the records that wait a second; what is not stored by then is in the log alone."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_STOP_SECONDS):
                await self._queue.join()
        if self.waiting:
            _log.warning("audit records are not stored count=%d", self.waiting)

    async def _store(self, record: _Record) -> None:
        subject = audit_subject(self._prefix, record.operation)
        header = header_block(MESSAGE_ID, record.number)
        pause = _PAUSE_SECONDS_MIN
        while True:
            try:
                answer = await self._link.request(subject, record.line.encode(), _ACK_SECONDS, header)
                if isinstance(parse_ack(answer), PublishAck):
                    break
                reason = answer[:256].decode(errors="replace")
            except UnavailableError as error:
                reason = error.description
            _log.info("audit record not stored yet id=%s error=%s", record.number, reason)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _PAUSE_SECONDS_MAX)
        self.counters.stored += 1
        self.waiting -= 1
        self._queue.task_done()
