"""How a node without a list of voters finds its cluster over NATS, or forms one with others.

Nodes publish their notices (`metadata.formation`) on ``<api prefix>.discovery``, and all of them hear all.
What a node has promised, and which cluster it belongs to, is in its data directory before it is said:

    name       content
    formation  state file: ``promised``, the candidates of the only set that this node ever promises, and
               ``formed``, the voters of its cluster; each empty until it is known
"""

import asyncio
import logging
from typing import Final

from pydantic import TypeAdapter, ValidationError

from envelope.errors import CorruptDataError, InvalidConfig, RemoteProtocolError, Unauthorized
from envelope.types import MonotonicNs, NodeId
from jetstream.log.disk.port import Disk
from jetstream.log.disk.state_file import decode_state, read_whole, write_state
from jetstream.node.clock import Clock
from jetstream.node.nats_link import NatsLink, ServiceRequest
from metadata.formation.machine import (
    SAY_INTERVAL_NS,
    Formation,
    FormationAction,
    FormationRecord,
    Heard,
    Persist,
    Say,
    Tick,
)
from metadata.formation.notices import FormedVoters, decode_notice, encode_notice

_log = logging.getLogger(__name__)

FORMATION_FILE: Final = "formation"
DISCOVERY_WORD: Final = "discovery"
"""Behind the API's prefix: where notices are published."""
_NOTICES_WAITING_MAX: Final = 256
"""More are dropped: every notice comes again."""
_RECORD: Final = TypeAdapter(FormationRecord)


class Discovery:
    """One node's part, on one connection to NATS; used on the loop's thread.

    Attributes:
        formation: what was agreed so far.
    """

    def __init__(
        self, formation: Formation, link: NatsLink, prefix: str, cluster: str, token: str | None
    ) -> None:
        """Speak for ``formation``; `listen` begins.

        Args:
            formation: made with what `read_record` returned.
            link: open.
            prefix: of the request API.
            cluster: notices of others are passed over.
            token: of the peers.
        """
        self.formation = formation
        self._link = link
        self._subject = f"{prefix}.{DISCOVERY_WORD}"
        self._cluster = cluster
        self._token = token
        self._heard: asyncio.Queue[Heard] = asyncio.Queue(_NOTICES_WAITING_MAX)
        self._warned: set[str] = set()

    async def listen(self) -> None:
        """Hear notices from now on."""
        await self._link.serve(self._subject, self._take)

    def _take(self, message: ServiceRequest) -> None:
        try:
            notice = decode_notice(message.payload, self._cluster, self._token)
        except (RemoteProtocolError, Unauthorized) as error:
            if error.description not in self._warned and len(self._warned) < _NOTICES_WAITING_MAX:
                self._warned.add(error.description)
                _log.warning("a notice is passed over: %s", error.description)
            return
        if notice is not None and not self._heard.full():
            self._heard.put_nowait(Heard(notice))

    async def form(self, disk: Disk, clock: Clock) -> FormedVoters:
        """Return the voters of this node's cluster, once there is one and that is durable here.

        Raises:
            InvalidConfig: nodes contradict each other, see `Formation.handle`.
            StorageError: what was agreed cannot be kept.
        """
        shown: tuple[NodeId, ...] = ()
        tick_at = clock.monotonic()
        while not self.formation.formed:
            heard = await self._next(tick_at, clock)
            if heard is None:
                tick_at = MonotonicNs(clock.monotonic() + SAY_INTERVAL_NS)
            try:
                actions = self.formation.handle(heard or Tick(), clock.monotonic())
            except InvalidConfig:
                await self._say(self.formation.say())  # so that the other side knows, and says so too
                raise
            for action in actions:
                await self._perform(action, disk)
            if self.formation.heard != shown:
                shown = self.formation.heard
                _log.info("forming a cluster of %d nodes: %s", self.formation.expected, ", ".join(shown))
        voters = self.formation.formed
        _log.info("the cluster is formed voters=%s", ",".join(voter.node_id for voter in voters))
        return voters

    async def answer(self, clock: Clock) -> None:
        """Tell those that look for the cluster of it, until cancelled."""
        while True:
            for action in self.formation.handle(await self._heard.get(), clock.monotonic()):
                assert isinstance(action, Say), f"a cluster that is there decides nothing: {action}"
                await self._say(action)

    async def _next(self, tick_at: MonotonicNs, clock: Clock) -> Heard | None:
        """Return what was heard, None when it is time to speak."""
        left_ns = tick_at - clock.monotonic()
        if left_ns <= 0:
            return None
        try:
            async with asyncio.timeout(left_ns / 1e9):
                return await self._heard.get()
        except TimeoutError:
            return None

    async def _perform(self, action: FormationAction, disk: Disk) -> None:
        if isinstance(action, Persist):
            await asyncio.to_thread(write_record, disk, action.record)
            _log.info("formation: %s", self.formation)
            action = action.then
        await self._say(action)

    async def _say(self, action: Say) -> None:
        notice = encode_notice(action.notice, self._cluster, self._token)
        await self._link.publish(self._subject.encode(), notice)


def read_record(disk: Disk) -> FormationRecord:
    """Return what a node has promised, and which cluster it belongs to; blocks.

    Raises:
        CorruptDataError: the file is damaged; what was promised is not known any more.
    """
    if not disk.exists(FORMATION_FILE):
        return FormationRecord()
    try:
        return _RECORD.validate_python(decode_state(read_whole(disk, FORMATION_FILE)))
    except ValidationError as error:
        raise CorruptDataError(f"{FORMATION_FILE} cannot be read: {error.error_count()} faults") from None


def write_record(disk: Disk, record: FormationRecord) -> None:
    """Replace what is kept; returns when it is durable.

    Raises:
        DiskFull, StorageError: as `write_state`.
    """
    write_state(disk, FORMATION_FILE, _RECORD.dump_python(record, mode="json"))
