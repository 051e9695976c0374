"""The replication sessions of a node: it asks its peers for what streams have, and answers what they ask.

Each node dials every other: what it asks, as a follower, goes out on the connection that it has dialled, what
it answers, as a leader, on the one on which it was asked. Two nodes that lead streams for each other so have
two connections. Nothing is kept for a peer that is not connected: fetches are safe to repeat, and whoever
waits for an answer is told when the connection breaks.

Whether a peer lives is found out here too. A process that ends is known at once, as its connections break and
dialling it again is refused; a machine or a network that ends is known by silence.
"""

import asyncio
from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Final

from envelope.types import Buffer, Incarnation, NodeId, StreamName
from jetstream.log.reader import FileRange
from jetstream.node.peers.fetch_sessions import (
    FetchRequester,
    FetchResponder,
    PeerSessionSettings,
    SessionHost,
)
from jetstream.replica.pulse import Verdict
from jetstream.replica.wire import Answer, Question, RepairAnswer
from metadata.node.peers.dialling import Address, Callers, PeerIdentity, keep_link
from metadata.node.peers.listening import PeerRefusal, PeerServer

REPLICATION: Final = "replication"
"""Purpose of the connections."""

_TICKS_PER_TIMEOUT: Final = 20


class ReplicaSessions:
    """See the module; made on the event loop it runs on, where every method is called."""

    def __init__(
        self,
        identity: PeerIdentity,
        peers: Mapping[NodeId, Address],
        host: SessionHost,
        settings: PeerSessionSettings,
        executor: Executor | None = None,
    ) -> None:
        """Prepare to speak as ``identity`` with ``peers``; others are met, and parted with, while it runs.

        Args:
            identity: this node's.
            peers: where others listen.
            host: is told what arrives and who lives.
            settings: times.
            executor: reads what is not in the page cache; None is the loop's own.
        """
        assert identity.node_id not in peers, "a node does not follow itself"
        self._identity = identity
        self._peers = dict(peers)
        self._links: dict[NodeId, asyncio.Task[None]] = {}
        self._running: tuple[asyncio.TaskGroup, Callers] | None = None
        self._host = host
        self._settings = settings
        self._executor = executor
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._followed = {peer: self._follower_end(peer) for peer in peers}
        self._led: dict[NodeId, FetchResponder] = {}

    async def run(self, server: PeerServer) -> None:
        """Keep a session with every peer until cancelled; then cut them all. Once only.

        Args:
            server: lets the peers in.

        Raises:
            ExceptionGroup: an error of ours, or of the host.
        """
        try:
            with server.serve(REPLICATION, self._serve, self._objection):
                async with asyncio.TaskGroup() as tasks:
                    self._running = tasks, server.callers
                    for peer in self._followed:
                        self._dial(peer, *self._running)
                    tasks.create_task(self._watch())
                    tasks.create_task(self._fail())
        finally:
            self._running = None
            for led in self._led.values():
                led.close()

    def meet(self, peer: NodeId, address: Address) -> None:
        """Keep a session with ``peer`` from now on, at this address; cut one at another address."""
        assert peer != self._identity.node_id, "a node does not follow itself"
        if self._peers.get(peer) == address:
            return
        self._peers[peer] = address
        if peer in self._followed:
            self._hang_up(peer)
        else:
            self._followed[peer] = self._follower_end(peer)
        if self._running is not None:
            self._dial(peer, *self._running)

    def part(self, peer: NodeId) -> None:
        """End the session with ``peer``: it is no node of the cluster any more."""
        if self._peers.pop(peer, None) is None:
            return
        self._hang_up(peer)
        del self._followed[peer]
        led = self._led.get(peer)
        if led is not None:
            led.close()

    @property
    def peers(self) -> frozenset[NodeId]:
        """The nodes that there is, or is to be, a session with."""
        return frozenset(self._peers)

    def _follower_end(self, peer: NodeId) -> FetchRequester:
        return FetchRequester(peer, self._host, self._settings, self._crashed)

    def _dial(self, peer: NodeId, tasks: asyncio.TaskGroup, callers: Callers) -> None:
        dialling = keep_link(
            self._identity,
            peer,
            self._peers[peer],
            purpose=REPLICATION,
            link=self._followed[peer],
            callers=callers,
        )
        self._links[peer] = tasks.create_task(dialling)

    def _hang_up(self, peer: NodeId) -> None:
        """Cut what was dialled; who is cut so is not told by its link."""
        link = self._links.pop(peer, None)
        if link is not None:
            link.cancel()
        if self._followed[peer].is_connected:
            self._host.disconnected(peer)

    def _objection(self, source: NodeId) -> PeerRefusal | None:
        """Only nodes of the catalogue come here; one that has just registered may be ahead of this one."""
        if source in self._peers:
            return None
        return PeerRefusal(f"{source} is not known here as a node of this cluster", later=True)

    def fetch(self, peer: NodeId, name: StreamName, incarnation: Incarnation, message: Question) -> bool:
        """Ask ``peer`` for what it has of a stream.

        Returns:
            False if there is no connection: nothing was sent.
        """
        end = self._followed.get(peer)
        return end is not None and end.fetch((name, incarnation), message)

    def answer(
        self,
        peer: NodeId,
        name: StreamName,
        incarnation: Incarnation,
        message: Answer | RepairAnswer,
        body: Buffer | FileRange | None = None,
    ) -> None:
        """Answer the newest fetch of ``peer`` as soon as it takes what went before, if it is still connected.

        An answer that still waits for that is dropped for a newer one of the same stream.

        Args:
            peer: who asked.
            name: of the stream.
            incarnation: of the stream.
            message: a body in it is not sent; its ``body_bytes`` are those of ``body``.
            body: of a `BatchesMessage` or `RepairAnswer`. Bytes are not to be changed any more; a range is
                read later, its segment is kept until then.

        Raises:
            UnavailableError: the range's segment has been removed: plan again.
        """
        life = name, incarnation
        if peer in self._led and life in self._led[peer].handles:
            end = self._led[peer]
            end.answers.put(end.handles[life], message, body)

    def is_connected(self, peer: NodeId) -> bool:
        """Return whether ``peer`` can be asked now."""
        end = self._followed.get(peer)
        return end is not None and end.is_connected

    def is_lost(self, peer: NodeId) -> bool:
        """Return whether ``peer`` is known to be dead, or silent, or not known at all."""
        end = self._followed.get(peer)
        return end is None or end.pulse.verdict is not Verdict.ALIVE

    def _crashed(self, error: BaseException) -> None:
        if not self._failure.done():
            self._failure.set_exception(error)

    async def _fail(self) -> None:
        await self._failure

    async def _serve(self, peer: NodeId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection until it ends; a newer one of the same peer takes its place."""
        before = self._led.get(peer)
        if before is not None:
            before.close()
        end = self._led[peer] = FetchResponder(peer, self._host, self._executor, self._crashed, writer)
        try:
            await end.carry(reader)
        finally:
            if self._led.get(peer) is end:
                del self._led[peer]

    async def _watch(self) -> None:
        """Report elapsed time to both ends of every session."""
        loop = asyncio.get_running_loop()
        timeout_ns = self._settings.leader_timeout_ns
        tick_ns = timeout_ns // _TICKS_PER_TIMEOUT
        before = loop.time()
        while True:
            await asyncio.sleep(tick_ns / 1e9)
            now = loop.time()
            # A pause of ours is no silence of others: what they said meanwhile is yet to be read.
            elapsed_ns = min(int((now - before) * 1e9), 2 * tick_ns)
            before = now
            for followed in tuple(self._followed.values()):
                followed.passed(elapsed_ns)
            for led in tuple(self._led.values()):
                led.passed(elapsed_ns, timeout_ns)
