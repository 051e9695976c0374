"""A running voter: its machine, its disk and its timer; the owner connects it to its peers.

Theory of operation. Everything happens on the event loop's thread, one event after another: it is given to
the machine (`metadata.raft.machine`), and the actions that come out are performed in their order before the
next event. All that the machine must not forget goes to the disk's thread (`metadata.node.voter.voter_disk`);
messages that rest on it leave when that thread has reported it. Nothing is decided here.

After an error of the disk, or one of ours, nothing is written, sent or applied any more: the voter is as
silent as a dead one, and `Voter.failure` has the error.

Invariants:
    V2: messages of ``Persist.then`` leave only after the storage has returned from that write.
        Held by test_nothing_is_written_after_an_error.
    V3: once failed, a voter performs no action.
        Held by test_a_disk_that_fails_ends_the_member_and_nobody_else.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, assert_never

from envelope.errors import DiskFull, Overloaded
from envelope.types import LogIndex, NodeId, Term
from metadata.limits import SNAPSHOT_LOG_BYTES_MIN
from metadata.node.storage.port import Storage
from metadata.node.timers.movable_timer import MovableTimer, now
from metadata.node.voter.pending_reads import PendingReads, not_leader
from metadata.node.voter.voter_disk import VoterDisk
from metadata.raft.configuration import Configuration, QuorumState
from metadata.raft.events import (
    Action,
    Apply,
    ChangeMembers,
    CompactLog,
    Event,
    MessageReceived,
    MetadataLeaderChanged,
    PeerDisconnected,
    Persist,
    Persisted,
    ProposalRefused,
    Propose,
    Proposed,
    Read,
    ReadReady,
    ReadRefused,
    RefusalReason,
    Restore,
    Send,
    Tick,
    TransferLeadership,
)
from metadata.raft.machine import Raft, correspondents
from metadata.raft.messages.observer_messages import Observe, ObserverAnswer
from metadata.raft.messages.voter_messages import Message
from metadata.raft.state import Entry, Position, Snapshot

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CommittedMembers:
    """The members of the group by a configuration that is committed."""

    index: LogIndex
    """Where that was known: of its entry, or of a snapshot behind it."""
    configuration: Configuration | None
    """None: the log had named none there."""


class StateMachine(Protocol):
    """The user of the committed entries; every call is made on the loop's thread, in log order."""

    @property
    def position(self) -> Position:
        """The last entry that was applied; it may be ahead of the voter's own log, and is not behind it."""

    @property
    def members(self) -> CommittedMembers:
        """Those as of that entry."""

    def can_apply(self, payload: bytes) -> bool:
        """Return whether it knows such a payload: asked for payloads of peers before they are in the log."""

    def apply(self, entries: Sequence[Entry]) -> None:
        """Apply entries that follow the last applied one; one with an empty payload means nothing."""

    def restore(self, snapshot: Snapshot) -> None:
        """Replace the state by another voter's `snapshot`."""

    def snapshot(self) -> bytes:
        """Return all that was applied."""

    def leader_changed(self, leader: NodeId | None, term: Term) -> None:
        """Handle a new leader; proposals before it may or may not be applied some day."""


class Voter:
    """See the module.

    Attributes:
        raft: the machine; to be read.
    """

    def __init__(
        self,
        raft: Raft,
        storage: Storage,
        machine: StateMachine,
        send: Callable[[Message], None],
        snapshot_log_bytes_min: int = SNAPSHOT_LOG_BYTES_MIN,
    ) -> None:
        """Begin to run, on the present event loop.

        Args:
            raft: made from what the storage holds.
            storage: belongs to the voter from now on.
            machine: holds what the storage's snapshot says.
            send: takes a message to its target, or loses it.
            snapshot_log_bytes_min: bytes of log below which no snapshot is taken.
        """
        self._loop = asyncio.get_running_loop()
        self.raft = raft
        self._state = machine
        self._send = send
        self._asked_to_lead = NodeId("")
        """The last of the voters that were asked, in turn, to take over while this disk is full."""
        self._snapshot_log_bytes_min = snapshot_log_bytes_min
        self._compact_at = snapshot_log_bytes_min
        self._log_bytes = storage.log_bytes
        self._answer: Proposed | ProposalRefused | None = None
        self._reads = PendingReads()
        self._wake_up = MovableTimer(lambda: self._handle(Tick()))
        self._is_stopped = False
        self._had_vote = raft.recovery.has_vote
        self.failure: asyncio.Future[None] = self._loop.create_future()
        """Raises the error that stopped the voter; cancelled when it is stopped."""
        self.on_moved: Callable[[], None] = lambda: None
        """Called when something was applied, or the leader has changed."""
        self.on_correspondents: Callable[[], None] = lambda: None
        """Called when `correspondents` have changed."""
        self.correspondents = correspondents(raft)
        """The other members that it speaks with."""
        self.disk_full: DiskFull | None = None
        """Why a write waits, while one waits for space."""
        self._disk = VoterDisk(storage, self._persisted, self._stalled, self._fail)
        self._wake_up.at(raft.wake_at)
        if not self._had_vote:
            _log.warning("the metadata log is empty, or recovers: no vote before the other voters are heard")

    def __str__(self) -> str:
        return str(self.raft)

    @property
    def leader(self) -> NodeId | None:
        """The leader, as far as this voter knows."""
        return self.raft.leader

    @property
    def term(self) -> Term:
        """The newest term it has seen."""
        return self.raft.term

    @property
    def quorum(self) -> QuorumState | None:
        """The members of the group, and when each was heard; None while this voter does not lead."""
        return self.raft.quorum

    async def stop(self) -> None:
        """Do nothing any more, finish the writes and close the storage."""
        self._is_stopped = True
        self._wake_up.cancel()
        self._reads.refuse_all()
        await self._disk.stop()
        self.failure.cancel()

    # --- what may be asked ------------------------------------------------------------------------

    def received(self, message: Message) -> None:
        """Handle a peer's message."""
        self._handle(MessageReceived(message))

    def disconnected(self, peer: NodeId, *, refused: bool) -> None:
        """Handle that a connection broke; ``refused``: nothing listens there any more."""
        self._handle(PeerDisconnected(peer, refused))

    def propose(self, payloads: tuple[bytes, ...]) -> Proposed:
        """Append payloads; that they are committed shows when they are applied.

        Raises:
            NotLeader: nothing was appended; its detail names the ``leader``, if that is known.
            Overloaded: nothing was appended: too much is not committed yet.
        """
        match self.ask(Propose(payloads)):
            case Proposed() as proposed:
                return proposed
            case ProposalRefused(RefusalReason.OVERLOADED):
                raise Overloaded("the metadata log waits for too many entries to be committed")
            case ProposalRefused(leader=leader):
                raise not_leader(leader)
            case _:
                raise not_leader(None)

    def ask(self, request: Propose | ChangeMembers) -> Proposed | ProposalRefused | None:
        """Append what is asked for, if this voter leads; return the answer, None if it does not run.

        An entry that was appended may be lost with this leader: only `quorum`, or the state, says that it is
        committed.
        """
        self._answer = None
        self._handle(request)
        return self._answer

    async def read(self) -> LogIndex:
        """Return the index that must be applied to see everything that was committed before this call.

        Raises:
            NotLeader: ask the leader.
        """
        token, index = self._reads.add()
        self._handle(Read(token))
        if not self._runs:
            self._reads.refuse_all()
        return await index

    def answer(self, question: Observe) -> ObserverAnswer | None:
        """Return what an observer lacks of what was applied here; None while that is nothing."""
        return self.raft.answer(question) if self._runs else None

    def transfer(self, target: NodeId) -> None:
        """Hand leadership over, if this voter leads; may not succeed."""
        self._handle(TransferLeadership(target))

    # --- events -----------------------------------------------------------------------------------

    @property
    def _runs(self) -> bool:
        return not self._is_stopped and not self.failure.done()

    def _handle(self, event: Event) -> None:
        if not self._runs:
            return  # V3
        try:
            for action in self.raft.handle(event, now()):
                self._perform(action)
        except Exception as error:  # noqa: BLE001 - a broken invariant: the voter must not go on
            self._fail(error)
        else:
            self._wake_up.at(self.raft.wake_at)
            if (members := correspondents(self.raft)) != self.correspondents:
                self.correspondents = members
                self.on_correspondents()
            if self.raft.recovery.has_vote and not self._had_vote:
                self._had_vote = True
                _log.info("this voter has a vote from now on: %s", self.raft)

    def _perform(self, action: Action) -> None:
        match action:
            case Send(message):
                self._send(message)
            case Persist():
                self._disk.write(action)
            case Apply(entries):
                self._state.apply(entries)
                self.on_moved()
                self._compact_if_due()
            case Restore(snapshot):
                self._state.restore(snapshot)
                self.on_moved()
            case MetadataLeaderChanged(leader, term):
                _log.info("metadata leader=%s term=%s", leader, term)
                self._state.leader_changed(leader, term)
                self.on_moved()
            case Proposed() | ProposalRefused():
                self._answer = action
            case ReadReady(tokens, index):
                self._reads.answer(tokens, index)
            case ReadRefused(tokens, leader):
                self._reads.refuse(tokens, leader)
            case _:
                assert_never(action)

    def _persisted(self, writes: Sequence[Persist], log_bytes: int) -> None:
        """Handle that writes are durable; the promises of each leave now (V2)."""
        self._log_bytes = log_bytes
        self.disk_full = None
        for write in writes:
            if write.snapshot is not None:
                self._compact_at = max(self._snapshot_log_bytes_min, len(write.snapshot.payload))
            for then in write.then:
                if self._runs:
                    self._send(then.message)
            self._handle(Persisted(write.number))

    def _stalled(self, error: DiskFull) -> None:
        """Ask another voter to lead while this disk is full: a leader applies what is on its own disk."""
        _log.warning("the metadata disk is full error=%s", error.description)
        self.disk_full = error
        others = self.raft.configuration.others(self.raft.node_id)
        behind = (voter for voter in others if voter > self._asked_to_lead)
        target = next(behind, others[0] if others else None)
        if target is not None:
            self._asked_to_lead = target
            self._handle(TransferLeadership(target))

    def _fail(self, error: BaseException) -> None:
        _log.error("the metadata voter stops error=%r", error)
        if self._runs:
            self.failure.set_exception(error)
            self._wake_up.cancel()
            self._reads.refuse_all()

    def _compact_if_due(self) -> None:
        """Replace a long log by a snapshot, once the actions under way are performed."""
        if self._state.position.index > self.raft.applied:
            return  # an observer was here before, and got further
        if self._log_bytes > self._compact_at:
            self._compact_at = 2 * self._log_bytes  # until the snapshot is durable
            compact = CompactLog(self.raft.applied, self._state.snapshot())
            self._loop.call_soon(self._handle, compact)
