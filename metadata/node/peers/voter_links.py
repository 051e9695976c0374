"""The connections of a voter: the messages of the metadata group, which go from the dialling side alone.

They may be lost, as Raft allows: a message that cannot leave at once, because there is no connection or the
peer does not read, is dropped and not queued.
"""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Final, Protocol

from envelope.limits import KIB, MIB
from envelope.types import NodeId
from metadata.node.peers.dialling import METADATA, Address, PeerIdentity, keep_link
from metadata.node.peers.listening import PeerRefusal, PeerServer
from metadata.raft.messages.wire import MessageReader, Sent, encode

UNSENT_BYTES_MAX: Final = 8 * MIB
"""Beyond it a peer does not read, and messages to it are dropped; one larger message may exceed it."""
RECEIVE_BYTES: Final = 256 * KIB
_FAREWELL_SECONDS: Final = 1.0
"""So long messages to a member that leaves may be on their way."""


class Listener(Protocol):
    """Listener to the network; called on the loop's thread."""

    def received(self, message: Sent) -> None:
        """Handle a message that arrived."""

    def disconnected(self, peer: NodeId, *, refused: bool) -> None:
        """Handle that a connection to ``peer`` broke; again, ``refused``, if nothing listens there now."""


class Outlets:
    """Where messages leave: at most one connection to each node.

    Attributes:
        dropped: messages that could not leave.
    """

    def __init__(self) -> None:
        """Begin without connections."""
        self.dropped = 0
        self._writers: dict[NodeId, asyncio.StreamWriter] = {}

    def __contains__(self, node: NodeId) -> bool:
        return node in self._writers

    def __len__(self) -> int:
        return len(self._writers)

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        """The nodes that are connected."""
        return tuple(self._writers)

    def put(self, node: NodeId, writer: asyncio.StreamWriter) -> None:
        """Use a new connection; the one before it is cut."""
        before = self._writers.get(node)
        if before is not None:
            before.transport.abort()
        self._writers[node] = writer

    def remove(self, node: NodeId, writer: asyncio.StreamWriter) -> bool:
        """Use this connection no more; return whether the node has none now."""
        if self._writers.get(node) is writer:
            del self._writers[node]
        return node not in self._writers

    def cut(self) -> None:
        """Cut all connections."""
        for writer in self._writers.values():
            writer.transport.abort()

    def send(self, message: Sent) -> bool:
        """Send now or never; return whether it is on its way."""
        writer = self._writers.get(message.target)
        # A transport may be closed before its reader has noticed: uvloop's refuses to be written to.
        if (
            writer is None
            or writer.transport.is_closing()
            or writer.transport.get_write_buffer_size() > UNSENT_BYTES_MAX
        ):
            self.dropped += 1
            return False
        writer.write(encode(message))
        return True


class PeerNetwork:
    """The connections of one voter; see the module."""

    def __init__(self, identity: PeerIdentity, server: PeerServer) -> None:
        """Prepare to speak as ``identity``, under a member's name; `follow` says with whom.

        Args:
            identity: of this member.
            server: lets peers in.
        """
        self._server = server
        self._identity = identity
        self._peers: dict[NodeId, Address] = {}
        self._links: dict[NodeId, asyncio.Task[None]] = {}
        self._running: tuple[asyncio.TaskGroup, Listener] | None = None
        self._outlets = Outlets()
        self._callers: set[asyncio.StreamWriter] = set()

    @property
    def peers(self) -> frozenset[NodeId]:
        """The members that it speaks with, connected or not."""
        return frozenset(self._peers)

    @property
    def dropped(self) -> int:
        """Messages that could not leave."""
        return self._outlets.dropped

    async def run(self, listener: Listener) -> None:
        """Keep a connection to every peer, and let theirs in, until cancelled; then close all of them.

        Args:
            listener: gets what arrives and what breaks.
        """
        name = self._identity.node_id
        try:
            with self._server.serve(
                METADATA, partial(self._listen, listener), self._objection, known_as=name
            ):
                async with asyncio.TaskGroup() as links:
                    self._running = links, listener
                    for peer in self._peers:
                        self._dial(peer, *self._running)
                    try:
                        await asyncio.Event().wait()
                    finally:
                        self._running = None  # a group that ends takes no more tasks
        finally:
            for writer in self._callers:
                writer.transport.abort()

    def follow(self, peers: Mapping[NodeId, Address]) -> None:
        """Speak with these from now on, at these addresses; cut the connections to others."""
        assert self._identity.node_id not in peers, "a voter does not dial itself"
        for peer, link in tuple(self._links.items()):
            if peer not in peers:  # the last that was sent may be that it is no member any more
                asyncio.get_running_loop().call_later(_FAREWELL_SECONDS, link.cancel)
            elif peers[peer] != self._peers[peer]:
                link.cancel()
            else:
                continue
            del self._links[peer]
        self._peers = dict(peers)
        if self._running is not None:
            for peer in self._peers.keys() - self._links.keys():
                self._dial(peer, *self._running)

    def _dial(self, peer: NodeId, links: asyncio.TaskGroup, listener: Listener) -> None:
        link = _MessageLink(peer, self._outlets, listener)
        dialling = keep_link(
            self._identity, peer, self._peers[peer], METADATA, link=link, callers=self._server.callers
        )
        self._links[peer] = links.create_task(dialling)

    def send(self, message: Sent) -> None:
        """Send now or never."""
        self._outlets.send(message)

    def _objection(self, source: NodeId) -> PeerRefusal | None:
        """Only members come; one that has just become one may be ahead of this one."""
        if source in self._peers:
            return None
        return PeerRefusal(f"{source} is no other voter of this cluster, as far as is known here", later=True)

    async def _listen(
        self, listener: Listener, source: NodeId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._callers.add(writer)  # nothing is answered there
        try:
            messages = MessageReader(source, self._identity.node_id)
            while data := await reader.read(RECEIVE_BYTES):
                for message in messages.feed(data):
                    listener.received(message)
        finally:
            self._callers.discard(writer)


class _MessageLink:
    """The `Link` on which the messages to one voter leave."""

    def __init__(self, peer: NodeId, outlets: Outlets, listener: Listener) -> None:
        """``outlets`` has the connection while there is one."""
        self._peer = peer
        self._outlets = outlets
        self._listener = listener
        self._tell_refusal = False

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """See `Link.talk`."""
        self._outlets.put(self._peer, writer)
        try:
            await reader.read(1)  # the peer says nothing here: what ends this is the connection's end
        finally:
            self._outlets.remove(self._peer, writer)

    def broken(self) -> None:
        """See `Link.broken`."""
        self._tell_refusal = True
        self._listener.disconnected(self._peer, refused=False)

    def unreached(self, *, refused: bool) -> None:
        """See `Link.unreached`."""
        if refused and self._tell_refusal:
            self._tell_refusal = False
            self._listener.disconnected(self._peer, refused=True)
