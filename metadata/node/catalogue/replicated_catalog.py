"""The catalogue as the state machine of a Raft group, and its listeners.

A snapshot holds the applied proposals beside the catalogue, so that a retry is known on every voter:

    offset size field
    0      4    magic ``JSRM``
    4      4    length of the proposals, u32 little-endian
    8      4    CRC32C of the proposals
    12     -    proposals (`metadata.raft.proposals`)
    -      -    the catalogue (`metadata.catalog.snapshot`), with a checksum of its own

Logs that were begun before proposals had names go on here: an entry of theirs is a command and nothing else,
a snapshot of theirs a catalogue and nothing else.

Invariant:
    M1: what was applied is what a restart reads: commands are applied as decoded from their bytes.
        Held by test_what_was_proposed_is_applied_now_and_after_a_restart.
"""

import asyncio
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from crc32c import crc32c

from envelope.errors import CorruptDataError, DeadlinePassed, UnsupportedFeatureLevel
from envelope.types import LogIndex, NodeId, Term
from metadata.catalog import snapshot as catalog_snapshot
from metadata.catalog.catalog import Catalog, feature_refusal
from metadata.catalog.commands import RegisterNode, decode_command
from metadata.catalog.events import CommandRefused, Event, Events
from metadata.catalog.tables import RegisteredNode
from metadata.node.peers.dialling import Address
from metadata.node.voter.voter import CommittedMembers
from metadata.raft.configuration import CONFIGURATION_ID, configuration_in
from metadata.raft.proposals import PROPOSAL_ID_BYTES, AppliedProposals, ProposalId, decode_proposal
from metadata.raft.state import Entry, Position, Snapshot

_MAGIC: Final = b"JSRM"
_HEADER: Final = struct.Struct("<4sII")


@dataclass(frozen=True, slots=True)
class Applied:
    """The outcome of a proposal."""

    index: LogIndex
    """Where it was applied."""
    events: Events | None
    """What the catalogue said. None: this member got the entry within another's snapshot, which tells that
    it was applied and not what was said; the catalogue shows what is so now."""

    def answer(self) -> Event:
        """Return the first event, the answer to the proposer.

        Raises:
            DeadlinePassed: the command was applied, or refused, and the answer is lost. To be looked up in
                the catalogue, or asked again: creations and confirmed removals may be repeated, and what
                compares epochs is refused as `Fenced` if it has been applied.
            JetstreamError: the catalogue refused the command.
        """
        if self.events is None:
            raise DeadlinePassed(f"the answer of metadata entry {self.index} came too late to be known here")
        first = self.events[0]
        if isinstance(first, CommandRefused):
            raise first.exception()
        return first


class CatalogListener(Protocol):
    """Listener to every change, on the loop's thread and in log order, before any proposer is answered.

    An error in here stops the voter. Nothing may be proposed before the call has returned.
    """

    def applied(self, events: Events) -> None:
        """Handle the events of an entry; the catalogue is as of that entry, and a refusal changes nothing."""

    def restored(self) -> None:
        """Handle that everything may have changed: another voter's snapshot replaced the catalogue."""


class ReplicatedCatalog:
    """The `StateMachine` of the metadata group; see the module.

    It outlives the member that feeds it: what a voter brings that an observer has brought before is skipped.

    Attributes:
        position: of the last entry that was applied.
        members: those of the group, as of there.
        on_members: called when they have changed, behind everything else.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        """Begin with what a snapshot holds; the one of index 0 holds nothing.

        Raises:
            CorruptDataError: it is damaged.
        """
        self._catalog, self._proposals = _decoded(snapshot)
        self.position = Position(snapshot.index, snapshot.term)
        self.members = CommittedMembers(snapshot.index, snapshot.configuration)
        self.on_members: Callable[[], None] = lambda: None
        self._listeners: list[CatalogListener] = []
        self._waiting: dict[ProposalId, asyncio.Future[Applied]] = {}
        self._moved = asyncio.Event()
        self._next_leader: asyncio.Future[NodeId] | None = None

    @property
    def catalog(self) -> Catalog:
        """The catalogue as of the last applied entry, one object for ever; to be read, never applied to."""
        return self._catalog

    def subscribe(self, listener: CatalogListener) -> None:
        """Call ``listener`` for every entry that is applied from now on."""
        self._listeners.append(listener)

    def outcome(self, proposal_id: ProposalId) -> "asyncio.Future[Applied]":
        """Return what will be known once that proposal is applied here, which may be never."""
        found = self._waiting.get(proposal_id)
        if found is None or found.done():
            found = self._waiting[proposal_id] = asyncio.get_running_loop().create_future()
            found.add_done_callback(partial(self._forget, proposal_id))
        return found

    async def reached(self, index: LogIndex) -> None:
        """Return when everything up to ``index`` is applied here."""
        while self._catalog.applied < index:
            self._moved.clear()
            await self._moved.wait()

    # --- the StateMachine -------------------------------------------------------------------------

    def can_apply(self, payload: bytes) -> bool:
        """See `StateMachine.can_apply`."""
        try:
            proposal_id, data = decode_proposal(payload)
            command = decode_command(data, LogIndex(0))
        except (CorruptDataError, UnsupportedFeatureLevel):
            return False
        return proposal_id != CONFIGURATION_ID and feature_refusal(self._catalog, command) is None

    def apply(self, entries: Sequence[Entry]) -> None:
        """See `StateMachine.apply`.

        Raises:
            CorruptDataError: an entry holds what no version of the catalogue proposed.
            UnsupportedFeatureLevel: the cluster is at a level from there on that this node cannot.
        """
        members = self.members
        for entry in entries:
            if entry.index <= self.position.index:
                continue
            if entry.is_for_the_voters:
                self._catalog.skip(entry.index)
                configuration = configuration_in(entry.payload)
                if configuration is not None:
                    self.members = CommittedMembers(entry.index, configuration)
            else:
                self._apply(entry)
            self.position = Position(entry.index, entry.term)
        self._moved.set()
        if self.members != members:
            self.on_members()

    def restore(self, snapshot: Snapshot) -> None:
        """See `StateMachine.restore`; errors as of making one."""
        if snapshot.index <= self.position.index:
            return
        self.position = Position(snapshot.index, snapshot.term)
        self.members = CommittedMembers(snapshot.index, snapshot.configuration)
        catalog, self._proposals = _decoded(snapshot)
        self._catalog.become(catalog)
        for proposal_id in tuple(self._waiting):
            index = self._proposals.index_of(proposal_id)
            if index is not None:
                self._resolve(proposal_id, Applied(index, None))
        self._moved.set()
        for listener in self._listeners:
            listener.restored()
        self.on_members()

    def snapshot(self) -> bytes:
        """See `StateMachine.snapshot`."""
        proposals = self._proposals.encode()
        header = _HEADER.pack(_MAGIC, len(proposals), crc32c(proposals))
        return b"".join((header, proposals, catalog_snapshot.encode(self._catalog)))

    def next_leader(self) -> "asyncio.Future[NodeId]":
        """Return what will be the next leader that this voter hears of; one future for all who wait."""
        if self._next_leader is None:
            self._next_leader = asyncio.get_running_loop().create_future()
        return self._next_leader

    def leader_changed(self, leader: NodeId | None, term: Term) -> None:
        """See `StateMachine.leader_changed`: it makes no difference to what is applied."""
        waiting = self._next_leader
        if leader is not None and waiting is not None:
            self._next_leader = None
            waiting.set_result(leader)

    def _apply(self, entry: Entry) -> None:
        if _is_nameless(entry.payload):
            self._decide(entry.index, entry.payload)
            return
        proposal_id, data = decode_proposal(entry.payload)
        index = self._proposals.index_of(proposal_id)
        if index is not None:
            self._catalog.skip(entry.index)
            self._resolve(proposal_id, Applied(index, None))
            return
        events = self._decide(entry.index, data)
        self._proposals.add(proposal_id, entry.index)
        self._resolve(proposal_id, Applied(entry.index, events))

    def _decide(self, index: LogIndex, data: bytes) -> Events:
        events = self._catalog.apply(index, decode_command(data, index))
        for listener in self._listeners:
            listener.applied(events)
        return events

    def _forget(self, proposal_id: ProposalId, future: "asyncio.Future[Applied]") -> None:
        if self._waiting.get(proposal_id) is future:
            del self._waiting[proposal_id]

    def _resolve(self, proposal_id: ProposalId, applied: Applied) -> None:
        future = self._waiting.get(proposal_id)
        if future is not None and not future.done():
            future.set_result(applied)


def last_registration(
    snapshot: Snapshot, entries: Sequence[Entry], node_id: NodeId
) -> RegisteredNode | RegisterNode | None:
    """Return a node's last registration in this log, committed or not.

    Raises:
        CorruptDataError: snapshot or entry is damaged.
    """
    return _registrations(snapshot, entries).get(node_id)


def registered_addresses(snapshot: Snapshot, entries: Sequence[Entry]) -> Iterator[tuple[NodeId, Address]]:
    """Yield where each node of this log is, by its last registration, committed or not; errors as above."""
    for node_id, registered in _registrations(snapshot, entries).items():
        if registered.peer_host is not None and registered.peer_port is not None:
            yield node_id, Address(registered.peer_host, registered.peer_port)


def _registrations(
    snapshot: Snapshot, entries: Sequence[Entry]
) -> dict[NodeId, RegisteredNode | RegisterNode]:
    found: dict[NodeId, RegisteredNode | RegisterNode] = {}
    for node in _decoded(snapshot)[0].nodes():
        found[node.node_id] = node
    for entry in entries:
        if not entry.is_for_the_voters and b'"register_node"' in entry.payload:
            command = decode_command(_command_in(entry.payload), entry.index)
            if isinstance(command, RegisterNode):
                found[command.node_id] = command
    return found


def _command_in(payload: bytes) -> bytes:
    return payload if _is_nameless(payload) else decode_proposal(payload)[1]


def _is_nameless(payload: bytes) -> bool:
    """Return whether an entry is from before proposals had names: JSON from its first byte on.

    A name is 16 random bytes before the JSON, so a name that begins like an object is recognised by the byte
    behind it.
    """
    return payload[:1] == b"{" and payload[PROPOSAL_ID_BYTES : PROPOSAL_ID_BYTES + 1] != b"{"


def _decoded(snapshot: Snapshot) -> tuple[Catalog, AppliedProposals]:
    if snapshot.index == 0:
        return Catalog(), AppliedProposals()
    if snapshot.payload.startswith(catalog_snapshot.MAGIC):
        catalog, proposals = catalog_snapshot.decode(snapshot.payload), AppliedProposals()
    else:
        catalog, proposals = _with_proposals(snapshot)
    if catalog.applied != snapshot.index:
        raise CorruptDataError(f"metadata snapshot {snapshot.index} holds the catalogue of {catalog.applied}")
    return catalog, proposals


def _with_proposals(snapshot: Snapshot) -> tuple[Catalog, AppliedProposals]:
    data = snapshot.payload
    magic, length, checksum = _HEADER.unpack_from(data) if len(data) >= _HEADER.size else (b"", 0, 0)
    proposals = data[_HEADER.size : _HEADER.size + length]
    if magic != _MAGIC or len(proposals) != length or crc32c(proposals) != checksum:
        raise CorruptDataError(f"metadata snapshot {snapshot.index} fails its checksum")
    catalog = catalog_snapshot.decode(data[_HEADER.size + length :])
    return catalog, AppliedProposals.decode(proposals)
