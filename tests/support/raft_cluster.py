"""Several Raft voters, their disks and the messages between them, all moved by hand.

A test decides what is delivered, dropped, repeated or overtaken, which disk is slow, who crashes and what
time it is. Meanwhile the cluster holds all voters to what Raft promises: one leader a term, one entry an
index.
"""

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from envelope.types import LogIndex, MonotonicNs, NodeId, Term
from metadata.node.storage.frames import FrameContents
from metadata.node.storage.port import StoredLog
from metadata.raft.election import ElectionMessage, Role
from metadata.raft.events import (
    Action,
    Apply,
    Event,
    MessageReceived,
    MetadataLeaderChanged,
    Persist,
    Persisted,
    Propose,
    Restore,
    Send,
    Tick,
)
from metadata.raft.machine import Raft
from metadata.raft.messages.voter_messages import Message, MessageHeader, PreVoteResponse, VoteResponse
from metadata.raft.settings import RaftSettings
from metadata.raft.state import Entry, HardState, Snapshot

MessageT = TypeVar("MessageT", bound=MessageHeader)

MS: Final = 1_000_000
SETTINGS: Final = RaftSettings()
TIMEOUT: Final = SETTINGS.election_timeout_ns
HEARTBEAT: Final = SETTINGS.heartbeat_interval_ns
START: Final = MonotonicNs(1_000 * MS)
A, B, C, D, E = (NodeId(name) for name in "abcde")


def entries_of(*terms: int, start: int = 1) -> tuple[Entry, ...]:
    """Return entries of these terms from index ``start`` on; equal index and term, equal payload."""
    return tuple(
        Entry(LogIndex(index), Term(term), f"{index}/{term}".encode())
        for index, term in enumerate(terms, start)
    )


def disk_of(
    *terms: int, term: int = 0, vote: NodeId | None = None, snapshot: Snapshot | None = None
) -> StoredLog:
    """Return a disk with entries of these terms, in that term or the last entry's if that is higher."""
    disk = StoredLog()
    disk.hard_state = HardState(Term(max(term, *terms, 0)), vote)
    if snapshot is not None:
        disk.snapshot = snapshot
    disk.add(FrameContents(entries_of(*terms, start=disk.snapshot.index + 1)))
    return disk


@dataclass
class Clock:
    """The time of a whole cluster."""

    now: MonotonicNs = START

    def advance(self, duration_ns: int) -> None:
        assert duration_ns >= 0
        self.now = MonotonicNs(self.now + duration_ns)


class Voter:
    """One machine and its disk; what it sends is kept until somebody takes it."""

    def __init__(
        self,
        name: NodeId,
        voters: Collection[NodeId],
        disk: StoredLog | None = None,
        clock: Clock | None = None,
        settings: RaftSettings = SETTINGS,
    ) -> None:
        self.name = name
        self.voters = frozenset(voters)
        self.disk = disk or StoredLog()
        self.clock = clock or Clock()
        self.settings = settings
        self.holds_writes = False
        self.restart()

    def lose_disk(self, token: int) -> None:
        """Die and start again with an empty disk; no other start has that token."""
        self.disk = StoredLog()
        self.restart(token)

    def restart(self, token: int | None = None) -> None:
        """Die and start again with what is on the disk."""
        self.raft = Raft(
            node_id=self.name,
            voters=self.voters,
            settings=self.settings,
            stored=self.disk.stored(),
            now=self.clock.now,
            recovery_token=token,
        )
        self.held: deque[Persist] = deque()
        self.sent: list[Message] = []
        self.news: list[Action] = []
        """What it told besides: who leads, answers to proposals and reads."""
        self.snapshot = self.disk.snapshot
        self.applied: list[Entry] = []
        """Behind the snapshot."""

    def give(self, event: Event) -> list[Message]:
        """Give it an event; return what it sent for it. Its writes are made at once unless they are held."""
        before = len(self.sent)
        for action in self.raft.handle(event, self.clock.now):
            self._perform(action)
        if not self.holds_writes:
            self.write()
        return self.sent[before:]

    def receive(self, *messages: Message) -> list[Message]:
        """Deliver messages to it; return what it sent for them."""
        return [sent for message in messages for sent in self.give(MessageReceived(message))]

    def tick(self) -> list[Message]:
        """Let time pass until it wants to be woken, and wake it; return what it sent."""
        self.clock.now = max(self.clock.now, self.raft.wake_at)
        return self.give(Tick())

    def stand(self) -> list[Message]:
        """Time out, be told that an election could be won, and stand for it; return what it sent."""
        peers = sorted(self.voters - {self.name})
        sent = self.tick()
        term = self.raft.term
        for peer in peers:
            sent += self.receive(PreVoteResponse(peer, self.name, term, term, granted=True))
        return sent

    def lead(self) -> list[Message]:
        """Win an election with the votes of all; return what it sent since it leads."""
        self.stand()
        before = len(self.sent)
        for peer in sorted(self.voters - {self.name}):
            self.receive(VoteResponse(peer, self.name, self.raft.term, granted=True))
        assert self.leads, str(self.raft)
        return self.sent[before:]

    def write(self, count: int | None = None) -> list[Message]:
        """Make the oldest held writes, all by default; return what was sent for it."""
        before = len(self.sent)
        while self.held and count != 0:
            count = None if count is None else count - 1
            persist = self.held.popleft()
            self._store(persist)
            self.sent.extend(send.message for send in persist.then)
            for action in self.raft.handle(Persisted(persist.number), self.clock.now):
                self._perform(action)
        return self.sent[before:]

    def take(self) -> list[Message]:
        """Return and forget what it has sent."""
        taken, self.sent = self.sent, []
        return taken

    @property
    def leads(self) -> bool:
        """Tell whether it leads its term."""
        return self.raft.role is Role.LEADER

    @property
    def terms(self) -> list[int]:
        """The terms of the entries on its disk."""
        return [entry.term for entry in self.disk.stored().entries]

    def _perform(self, action: Action) -> None:
        match action:
            case Send(message):
                self.sent.append(message)
            case Persist():
                self.held.append(action)
            case Apply(entries):
                self.applied.extend(entries)
                indexes = [entry.index for entry in self.applied]
                assert indexes == list(range(self.snapshot.index + 1, self.raft.applied + 1))
            case Restore(snapshot):
                self.snapshot, self.applied = snapshot, []
            case _:
                self.news.append(action)

    def _store(self, persist: Persist) -> None:
        """Write as the real storage does: a contradiction is refused (S1 to S3 there)."""
        snapshot = persist.snapshot
        for contents in (
            FrameContents((), persist.hard_state),
            FrameContents(self.disk.behind(snapshot), None, snapshot) if snapshot else None,
            FrameContents(persist.entries),
        ):
            if contents is not None:
                problem = self.disk.contradiction(contents)
                assert problem is None, problem
                self.disk.add(contents)


@dataclass
class RaftCluster:
    """Voters that share a clock and a pool of messages; see the module."""

    voters: dict[NodeId, Voter]
    clock: Clock
    pool: list[Message] = field(default_factory=list)
    """Under way, in the order they were sent."""
    cut: set[NodeId] = field(default_factory=set)
    """Voters that nothing reaches and nothing leaves."""
    _leaders: dict[Term, NodeId] = field(default_factory=dict)
    _committed: dict[LogIndex, Entry] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        *names: NodeId,
        disks: dict[NodeId, StoredLog] | None = None,
        settings: RaftSettings = SETTINGS,
    ) -> "RaftCluster":
        """Return a cluster of these voters, with empty disks where none is given."""
        clock, given = Clock(), disks or {}
        return cls({name: Voter(name, names, given.get(name), clock, settings) for name in names}, clock)

    @classmethod
    def led_by_a(cls, *names: NodeId, settings: RaftSettings = SETTINGS) -> "RaftCluster":
        """Return a cluster, of three by default, whose leader is ``A`` and in which nothing is under way."""
        cluster = cls.of(*(names or (A, B, C)), settings=settings)
        cluster.elect(A)
        return cluster

    def __getitem__(self, name: NodeId) -> Voter:
        return self.voters[name]

    def give(self, name: NodeId, event: Event) -> None:
        """Give a voter an event; what it sends goes to the pool."""
        self.voters[name].give(event)
        self._collect()

    def tick(self, name: NodeId) -> None:
        """Let time pass until that voter, and no other, is woken."""
        self.voters[name].tick()
        self._collect()

    def write(self, name: NodeId, count: int | None = None) -> None:
        """Make held writes of a voter."""
        self.voters[name].write(count)
        self._collect()

    def deliver(self, *messages: Message) -> None:
        """Deliver messages now; one that is not in the pool (any more) is a copy that comes late."""
        for message in messages:
            if message in self.pool:
                self.pool.remove(message)
            if not {message.source, message.target} & self.cut:
                self.give(message.target, MessageReceived(message))

    def run(self) -> None:
        """Deliver everything under way, and what is sent for it, in order."""
        while self.pool:
            self.deliver(self.pool[0])

    def run_without(self, name: NodeId) -> None:
        """Deliver everything that others than ``name`` are sent; what comes back to it is lost."""
        while self.pool:
            message = self.pool[0]
            self.drop([message]) if message.target == name else self.deliver(message)

    def under_way(
        self, kind: type[MessageT], source: NodeId | None = None, target: NodeId | None = None
    ) -> list[MessageT]:
        """Return messages of a kind in the pool."""
        of_kind = [message for message in self.pool if isinstance(message, kind)]
        return [m for m in of_kind if source in (None, m.source) and target in (None, m.target)]

    def drop(self, messages: Iterable[Message] | None = None) -> list[Message]:
        """Lose messages under way, all by default; return them."""
        dropped = list(self.pool if messages is None else messages)
        for message in dropped:
            self.pool.remove(message)
        return dropped

    def win(self, name: NodeId) -> None:
        """Make a voter the leader; of all messages only those of its election are delivered.

        It asks when no lease is left and nobody else asks.
        """
        self.clock.advance(2 * TIMEOUT)
        self.tick(name)
        while election := [message for message in self.pool if isinstance(message, ElectionMessage)]:
            self.deliver(election[0])
        assert self.voters[name].leads, str(self)

    def elect(self, name: NodeId) -> None:
        """Make a voter the leader, and let everybody follow it."""
        self.win(name)
        self.run()

    def propose(self, name: NodeId, *payloads: bytes) -> None:
        """Propose to a voter."""
        self.give(name, Propose(payloads))

    def let_pass(self, duration_ns: int) -> None:
        """Let time pass with everybody awake and every message delivered at once."""
        end = self.clock.now + duration_ns
        while True:
            name = min(self.voters, key=lambda name: self.voters[name].raft.wake_at)
            if self.voters[name].raft.wake_at > end:
                break
            self.tick(name)
            self.run()
        self.clock.now = MonotonicNs(end)

    def __str__(self) -> str:
        return "\n".join(str(voter.raft) for voter in self.voters.values())

    def _collect(self) -> None:
        """Take what was sent, and hold everybody to Raft's promises."""
        for voter in self.voters.values():
            self.pool += voter.take()
            for entry in voter.applied:
                assert self._committed.setdefault(entry.index, entry) == entry, f"entry {entry.index}\n{self}"
            for news in voter.news:
                if isinstance(news, MetadataLeaderChanged) and news.leader is not None:
                    assert self._leaders.setdefault(news.term, news.leader) == news.leader, str(self)
