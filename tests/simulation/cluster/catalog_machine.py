"""The product's replicated catalogue as the state machine of one simulated voter, in one life."""

from typing import Protocol

from envelope.types import LogIndex, NodeId, Term
from metadata.catalog.catalog import Catalog
from metadata.catalog.events import Events
from metadata.node.catalogue.replicated_catalog import ReplicatedCatalog
from metadata.node.storage.port import INITIAL_SNAPSHOT
from metadata.raft.proposals import ProposalId, decode_proposal
from metadata.raft.state import Entry, Snapshot
from tests.simulation.raft.state_machine import State


class Listener(Protocol):
    """The process around a voter."""

    def applied(self, events: Events) -> None:
        """An entry has changed something, or was refused."""

    def restored(self) -> None:
        """Another voter's snapshot has replaced everything."""

    def decided(self, proposal_id: ProposalId, events: Events | None) -> None:
        """A proposal was applied; None: it had been applied before."""

    def leader_changed(self) -> None:
        """Another voter leads, or none."""


class CatalogMachine:
    """See `tests.simulation.raft.state_machine`."""

    def __init__(self) -> None:
        self._replicated = ReplicatedCatalog(INITIAL_SNAPSHOT)
        self._replicated.subscribe(self)
        self._events: Events | None = None
        self.listener: Listener | None = None
        """None while there is no process around it."""
        self.deciding: ProposalId | None = None
        """Name of the proposal that is being applied, or was last."""

    @property
    def catalog(self) -> Catalog:
        """As of the last applied entry; one object for ever."""
        return self._replicated.catalog

    @property
    def index(self) -> LogIndex:
        """The last entry that was applied."""
        return self.catalog.applied

    @property
    def count(self) -> int:
        """The index: nobody counts commands here."""
        return self.index

    @property
    def state(self) -> State:
        """All rows, without what never changes of them."""
        streams = tuple(
            (
                stream.name,
                stream.leader,
                stream.leader_epoch,
                tuple((member.node_id, member.directory) for member in stream.isr),
                stream.isr_version,
                stream.replicas,
                stream.target,
                stream.departed,
                stream.read_replicas,
                stream.blank,
                stream.begun,
            )
            for stream in self.catalog.streams()
        )
        nodes = tuple((node.node_id, node.node_epoch, node.directory) for node in self.catalog.nodes())
        removals = tuple((removal.incarnation, removal.pending) for removal in self.catalog.removals())
        return streams, nodes, removals

    def apply(self, entry: Entry) -> bytes | None:
        """Apply the next entry; return the proposal's name if its command was decided on."""
        self._events = None
        proposal_id = self.deciding = None if entry.is_for_the_voters else decode_proposal(entry.payload)[0]
        self._replicated.apply((entry,))
        if proposal_id is None:
            return None
        if self.listener is not None:
            self.listener.decided(proposal_id, self._events)
        return proposal_id if self._has_decided() else None

    def _has_decided(self) -> bool:
        return self._events is not None

    def restore(self, snapshot: Snapshot) -> None:
        """Become what the snapshot holds."""
        if snapshot.index:
            self._replicated.restore(snapshot)

    def encode(self) -> bytes:
        """Return the payload of a snapshot."""
        return self._replicated.snapshot()

    def leader_changed(self, leader: NodeId | None, term: Term) -> None:
        """Tell the process."""
        if self.listener is not None:
            self.listener.leader_changed()

    # --- the CatalogListener ----------------------------------------------------------------------------

    def applied(self, events: Events) -> None:
        """See `metadata.node.catalogue.replicated_catalog.CatalogListener`."""
        self._events = events
        if self.listener is not None:
            self.listener.applied(events)

    def restored(self) -> None:
        """See `metadata.node.catalogue.replicated_catalog.CatalogListener`."""
        if self.listener is not None:
            self.listener.restored()
