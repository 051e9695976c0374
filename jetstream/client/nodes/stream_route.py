"""A reader's way to the replicas of its stream: the node to ask now, and the next one when that fails."""

import random
import time
from dataclasses import dataclass
from typing import Final

from envelope.errors import (
    CorruptDataError,
    InvalidTicket,
    JetstreamError,
    NotLeader,
    StreamRecreated,
    UnknownStream,
)
from jetstream.client.nodes.node_links import NodeLinks
from jetstream.client.nodes.replica_choice import Purpose, ReadPreference, RouteStep, StreamReplicas, choose
from jetstream.client.nodes.socket_link import SocketLink
from jetstream.client.nodes.tickets import HeldRight, ReadRight

_REFUSALS_MAX: Final = 6
"""Of a ticket that we cannot replace, in a row: a node may not know the newest key yet."""
_SHUNNED_S: Final = 1.0
"""How long a node that has failed is not asked for what another one has too."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A node that can be asked now."""

    step: RouteStep
    link: SocketLink


class StreamRoute:
    """The state behind a reader's `choose`, and its connection.

    Invariant:
        C14: after every failure another node reports where the stream is, before the next attempt.
            Held by test_a_reader_follows_the_leader_when_it_changes.
    """

    def __init__(
        self, links: NodeLinks, stream: str, preference: ReadPreference, subject: str | None = None
    ) -> None:
        """``subject``: only the records on subjects that match this pattern are to be read."""
        self.stream: Final = stream
        self._held = HeldRight(ReadRight(stream, subject))
        self._preference = preference
        self._links = links
        self._turn = random.randrange(1 << 16)  # noqa: S311 - spreads readers, no secret
        self._shunned: dict[str, float] = {}
        """Until when, in seconds of the monotonic clock."""
        self._step: RouteStep | None = None
        self._is_stale = False
        self._doubted: JetstreamError | None = None
        self._known: StreamReplicas | None = None
        self._damaged_at: set[str] = set()
        """The nodes where what comes next is damaged."""
        self._has_caught_up = False
        self._refusals = 0
        """Of our ticket, in a row."""

    async def to_offsets(self, incarnation: str | None) -> Arrival:
        """Return a node that knows where the stream begins and ends; see `to_records`."""
        return await self._to(Purpose.OFFSETS, incarnation)

    async def to_records(self, incarnation: str | None, *, behind: bool) -> Arrival:
        """Return the node to ask for records.

        Args:
            incarnation: the life of the stream that is read; None if any will do.
            behind: there are records to be read.

        Raises:
            UnknownStream: there is none; more than one node reports it if there are more.
            StreamRecreated: the stream has another incarnation now.
            NotLeader: it has no leader now; retriable.
            JetstreamError: as `NodeLinks.link`.
        """
        purpose = Purpose.CATCH_UP if behind and not self._has_caught_up else Purpose.TAIL
        return await self._to(purpose, incarnation)

    async def _to(self, purpose: Purpose, incarnation: str | None) -> Arrival:
        known = await self._links.replicas_of(self.stream, self._held, refresh=self._is_stale)
        self._is_stale = False
        self._known = known
        self._settle_doubt(known, incarnation)
        now = time.monotonic()
        shunned = [node for node, until in self._shunned.items() if until > now]
        step = choose(known, purpose, self._preference, shunned, self._turn)
        if step is None:
            self._is_stale = True
            raise NotLeader(f"nobody leads {self.stream!r} now")
        self._step = step
        return Arrival(step, await self._links.link_to(step.node, self._held))

    def _settle_doubt(self, known: StreamReplicas, incarnation: str | None) -> None:
        doubted, self._doubted = self._doubted, None
        if isinstance(doubted, StreamRecreated) and incarnation != known.incarnation:
            raise doubted

    def has_caught_up(self) -> bool:
        """Record that the replica has nothing more; return whether the reader goes to the leader now.

        If it does not, it has been where the leader should be already.
        """
        assert self._step is not None, "who has caught up has been somewhere"
        was_behind = not self._has_caught_up and self._step.wait_ms_max is not None
        self._has_caught_up = True
        return was_behind

    def has_progressed(self) -> None:
        """Record that records came."""
        self._damaged_at.clear()
        self._refusals = 0

    def failed(self, error: JetstreamError) -> bool:
        """Record a failure; return whether another attempt is worth while.

        A node that reports a stream as unknown, or under another incarnation, may only be behind: other nodes
        are asked before it is believed. A range that is damaged at one replica is whole at another, unless
        all report damage.
        """
        has_another_ticket = self._links.refused(self._held, error)
        step, self._step = self._step, None
        self._is_stale, self._has_caught_up = True, False
        is_refused = self._is_refused_for_good(error)
        if step is None or has_another_ticket:
            return (error.retriable and not is_refused) or has_another_ticket
        self._shunned[step.node] = time.monotonic() + _SHUNNED_S
        if isinstance(error, UnknownStream | StreamRecreated):
            self._doubted = error
            return True
        if isinstance(error, CorruptDataError):
            self._damaged_at.add(step.node)
            return self._has_another_replica()
        return error.retriable and not is_refused

    def _is_refused_for_good(self, error: JetstreamError) -> bool:
        if not isinstance(error, InvalidTicket) or self._links.gets_tickets:
            return False
        self._refusals += 1
        return self._refusals >= _REFUSALS_MAX

    def _has_another_replica(self) -> bool:
        assert self._known is not None, "who has been somewhere has asked where"
        return self._preference.read_from != "leader" and not self._damaged_at.issuperset(self._known.holders)
