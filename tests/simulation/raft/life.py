"""One life of a voter's process: performs what `Raft` wants done, and loses everything else when it ends."""

from collections.abc import Callable

from envelope.errors import CorruptDataError
from envelope.types import LogIndex, MonotonicNs, NodeId, Term
from metadata.raft.events import (
    Action,
    Apply,
    ChangeMembers,
    CompactLog,
    Event,
    MessageReceived,
    MetadataLeaderChanged,
    Persist,
    ProposalRefused,
    Propose,
    Proposed,
    Read,
    ReadReady,
    ReadRefused,
    Restore,
    Send,
)
from metadata.raft.leader.replication import FollowerMessage
from metadata.raft.machine import Raft
from tests.simulation.raft.checkers.answers import check_answers
from tests.simulation.raft.checkers.members import Sides
from tests.simulation.raft.checkers.stability import Stability
from tests.simulation.raft.description import event_text
from tests.simulation.raft.world import World
from tests.simulation.violation import Violation

Answer = Callable[[int | None, NodeId | None], None]
"""Told the count of commands, or None and who leads instead."""
PutWrite = Callable[[Persist], None]


class Life:
    """The shell around one `Raft`; ``put_write`` takes what is to be made durable."""

    def __init__(self, world: World, name: NodeId, now: MonotonicNs, put_write: PutWrite) -> None:
        self._disk = disk = world.disks[name]
        self._world, self.name, self._put_write = world, name, put_write
        self.machine = world.new_machine(name)
        self.machine.restore(disk.snapshot)
        self._asked = disk.copy()
        self._proposing: tuple[int, Answer] | None = None
        self._proposals: dict[tuple[LogIndex, Term], Answer] = {}
        self._reads: dict[int, Answer] = {}
        self._ready: list[tuple[LogIndex, int]] = []
        self._stability = Stability(name, world.swarm.machines, world.swarm.election_timeout)
        self.leading = False
        world.checks.asked[name] = self._asked
        world.checks.applied.started(name, self.machine)
        voters = frozenset(world.swarm.voters if name in world.swarm.voters else ())
        token = world.disk_losses.token(name)
        self.raft = Raft(
            node_id=name,
            voters=voters,
            settings=world.settings,
            stored=disk.stored(),
            now=now,
            recovery_token=token,
        )
        self._commit: LogIndex = self.raft.commit
        self._sides = world.checks.members.by(self._asked)
        self._trace(f"starts: {self.raft}")

    @property
    def applied(self) -> int:
        """How far the state machine is."""
        return self.machine.index

    def tell(self, event: Event, now: MonotonicNs) -> None:
        """Give an event to the machine, and perform what it wants."""
        self._handle(event, now)
        entries = self._world.swarm.compact_entries
        if entries and self.machine.index - self._asked.snapshot.index >= entries:
            self._world.trace.counts["compacted"] += 1
            self._handle(CompactLog(self.machine.index, self.machine.encode()), now)

    def propose(self, payloads: tuple[bytes, ...], answer: Answer, now: MonotonicNs) -> None:
        """Propose for a client; answered when the last payload is applied, or refused at once."""
        self._proposing = len(payloads), answer
        self.tell(Propose(payloads), now)
        if self._proposing is not None:
            raise Violation(f"{self.name} has neither taken nor refused a proposal")

    def change(
        self, voters: tuple[NodeId, ...], learners: tuple[NodeId, ...], answer: Answer, now: MonotonicNs
    ) -> None:
        """Change the members for an operator; answered when the first entry of it is applied."""
        self._proposing = 1, answer
        self.tell(ChangeMembers(voters, learners), now)

    def read(self, token: int, answer: Answer, now: MonotonicNs) -> None:
        """Read for a client; answered once the state machine is new enough."""
        self._reads[token] = answer
        self._world.checks.reads.asked(token, self._world.checks.commits.commit)
        self.tell(Read(token), now)

    def _handle(self, event: Event, now: MonotonicNs) -> None:
        world = self._world
        world.steps += 1
        term, sides = self.raft.term, self._sides
        answer = event.message if isinstance(event, MessageReceived) else None
        if isinstance(answer, FollowerMessage) and answer.term == term:
            world.checks.heard[self.name, answer.source] = world.timeline.now
        try:
            actions = self.raft.handle(event, now)
        except CorruptDataError as error:
            raise Violation(f"{self.name} believes that a disk was put back: {error}") from None
        if world.trace.on:
            self._trace(f"{event_text(event)}  | {self.raft}")
        check_answers(event, actions, self._asked, term)
        self._stability.handled(event, actions, now, sides)
        for action in actions:
            self._perform(action)
        if self.raft.commit != self._commit:
            self._commit_moved(sides)

    def _perform(self, action: Action) -> None:
        match action:
            case Send(message):
                self._world.checks.sent(message)
                self._world.network.send((message.source, message.target), message)
            case Persist():
                self._world.checks.log_matching.asked(self._asked, action)
                if action.entries and action.entries[0].index <= self._asked.last_index:
                    self._world.trace.counts["truncated"] += 1
                self._asked.write(action)
                self._sides = self._world.checks.members.by(self._asked)
                self._put_write(action)
            case Apply():
                self._apply(action)
            case Restore(snapshot):
                if self._disk.snapshot.index < snapshot.index:
                    raise Violation(f"{self.name} restores {snapshot.index} before it is durable here")
                self.machine.restore(snapshot)
                self._world.checks.applied.restored(self.name, self.machine)
                self._world.trace.counts["restored"] += 1
                self._answer_reads()
            case MetadataLeaderChanged(leader, term):
                self._leader_changed(leader, term)
            case Proposed() | ProposalRefused():
                self._answer_proposal(action)
            case ReadReady() | ReadRefused():
                self._answer_tokens(action)

    def _leader_changed(self, leader: NodeId | None, term: Term) -> None:
        checks = self._world.checks
        if leader is not None:
            checks.elections.led(term, leader)
        if leader == self.name and not self.leading:
            checks.commits.elected(self.name, term)
            self._world.trace.counts["elected"] += 1
        self.leading = leader == self.name
        self.machine.leader_changed(leader, term)

    def _answer_proposal(self, action: Proposed | ProposalRefused) -> None:
        if self._proposing is None:
            raise Violation(f"{self.name} answers a proposal that was not made: {action}")
        (count, answer), self._proposing = self._proposing, None
        if isinstance(action, ProposalRefused):
            self._world.trace.counts[f"refused_{action.reason}"] += 1
            answer(None, action.leader)
        else:
            self._proposals[LogIndex(action.first + count - 1), action.term] = answer

    def _answer_tokens(self, action: ReadReady | ReadRefused) -> None:
        reads = self._world.checks.reads
        for token in action.tokens:
            if isinstance(action, ReadRefused):
                reads.refused(token)
                self._reads.pop(token)(None, action.leader)
            else:
                reads.ready(token, action.index)
                self._ready.append((action.index, token))
        self._answer_reads()

    def _answer_reads(self) -> None:
        if not self._ready:
            return
        due = [token for index, token in self._ready if index <= self.machine.index]
        self._ready = [(index, token) for index, token in self._ready if index > self.machine.index]
        for token in due:
            self._world.trace.counts["read"] += 1
            self._reads.pop(token)(self.machine.count, None)

    def _commit_moved(self, sides: Sides) -> None:
        if self.raft.commit < self._commit:
            raise Violation(f"{self.name}: commit goes back from {self._commit} to {self.raft.commit}")
        self._commit = self.raft.commit
        announced = self._world.checks.commits.announced
        announced(self._asked, self._commit, self.raft.term, sides=sides, leads=self.leading)

    def _apply(self, action: Apply) -> None:
        for entry in action.entries:
            if not self._disk.holds(entry.index, entry.term):
                raise Violation(f"{self.name} applies {entry.index} before it is durable here")
            command = self.machine.apply(entry)
            self._world.checks.applied.applied(self.name, entry, self.machine, command)
            answer = self._proposals.pop((entry.index, entry.term), None)
            if answer is not None:
                self._world.trace.counts["written"] += 1
                answer(self.machine.count, None)
        self._answer_reads()

    def _trace(self, what: str) -> None:
        if self._world.trace.on:
            self._world.trace.line(self._world.timeline.now, self.name, what)
