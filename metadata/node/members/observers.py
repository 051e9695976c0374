"""The observers that are connected to a voter: they get its leader, and what was applied here.

An observer dials, and both sides speak on its connection (`metadata.raft.messages.observer_messages`). Of
each its last question is kept; an answer leaves only where the one before it has been read, so that an
observer that is slow, or does not read, costs one answer and a few messages about the leader. Messages of
observers to the metadata leader, about leases and commands, are handed on like those of voters.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from envelope.errors import RemoteProtocolError
from envelope.limits import MIB
from envelope.types import NodeId, Term
from metadata.limits import ENTRY_BYTES_MAX, NODES_MAX
from metadata.node.peers.dialling import OBSERVER
from metadata.node.peers.listening import PeerRefusal, PeerServer
from metadata.node.peers.voter_links import RECEIVE_BYTES, Listener, Outlets
from metadata.raft.messages.node_messages import LeaseAsked, NodeUnheardReport, StopAnnounced
from metadata.raft.messages.observer_messages import Observe, ObserverAnswer, VoterStatus
from metadata.raft.messages.wire import Forwarded, MessageReader, Sent

_NS_PER_SECOND: Final = 1_000_000_000
_MESSAGE_BYTES_MAX: Final = ENTRY_BYTES_MAX + MIB
"""Observers send nothing larger than a command."""

_HandedOn = Forwarded | LeaseAsked | NodeUnheardReport | StopAnnounced


class Observers:
    """See the module; made on the event loop it runs on."""

    def __init__(
        self,
        node_id: NodeId,
        answer: Callable[[Observe], ObserverAnswer | None],
        led: Callable[[], tuple[NodeId | None, Term]],
        status_interval_ns: int,
    ) -> None:
        """Begin without observers.

        Args:
            node_id: this voter.
            answer: returns what an observer lacks, None while that is nothing.
            led: returns leader and term.
            status_interval_ns: how often observers get these, while nothing changes.
        """
        self._node_id = node_id
        self._answer = answer
        self._led = led
        self._status_seconds = status_interval_ns / _NS_PER_SECOND
        self._outlets = Outlets()
        self._questions: dict[NodeId, Observe] = {}
        self._told = led()
        self._is_due = False
        self._has_come = asyncio.Event()

    @contextlib.contextmanager
    def served(self, server: PeerServer, listener: Listener) -> Iterator[None]:
        """Let observers in for the block.

        Args:
            server: where they come.
            listener: gets the messages that are not for this class.
        """
        with server.serve(OBSERVER, partial(self._talk, listener), self._objection):
            yield

    async def run(self) -> None:
        """Send the leader to all observers at short intervals, while there are any, until cancelled."""
        try:
            while True:
                if not len(self._outlets):
                    self._has_come.clear()
                    await self._has_come.wait()
                await asyncio.sleep(self._status_seconds)
                self._send_status_to_all()
                self._answer_all()
        finally:
            self._outlets.cut()

    def moved(self) -> None:
        """Handle that something was applied, or that the leader has changed."""
        if not self._is_due and len(self._outlets):
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._send_news)

    def send(self, message: Sent) -> bool:
        """Send to an observer, now or never; return whether it is one, and is connected."""
        return message.target in self._outlets and self._outlets.send(message)

    def _send_news(self) -> None:
        self._is_due = False
        if self._led() != self._told:
            self._send_status_to_all()
        self._answer_all()

    def _send_status_to_all(self) -> None:
        self._told = self._led()
        for observer in self._outlets.nodes:
            self._send_status(observer)

    def _send_status(self, observer: NodeId) -> None:
        leader, term = self._led()
        self._outlets.send(VoterStatus(self._node_id, observer, term, leader or NodeId("")))

    def _answer_all(self) -> None:
        for question in tuple(self._questions.values()):
            self._answer_if_possible(question)

    def _answer_if_possible(self, question: Observe) -> None:
        answer = self._answer(question)
        if answer is not None and self._outlets.send(answer):
            del self._questions[question.source]

    # --- one observer -----------------------------------------------------------------------------

    def _objection(self, source: NodeId) -> PeerRefusal | None:
        del source  # any node may observe
        if len(self._outlets) >= NODES_MAX:
            return PeerRefusal(f"{NODES_MAX} observers are connected", later=True)
        return None

    async def _talk(
        self, listener: Listener, source: NodeId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Serve an observer until its connection ends; a newer one of the same node takes its place."""
        self._outlets.put(source, writer)
        self._has_come.set()
        self._questions.pop(source, None)
        self._send_status(source)
        try:
            messages = MessageReader(source, self._node_id, _MESSAGE_BYTES_MAX)
            while data := await reader.read(RECEIVE_BYTES):
                for message in messages.feed(data):
                    self._received(message, listener)
        finally:
            if self._outlets.remove(source, writer):
                self._questions.pop(source, None)

    def _received(self, message: Sent, listener: Listener) -> None:
        if isinstance(message, Observe):
            self._questions[message.source] = message
            self._answer_if_possible(message)
        elif isinstance(message, _HandedOn):
            listener.received(message)
        else:
            raise RemoteProtocolError(f"an observer does not say {type(message).__name__}")
