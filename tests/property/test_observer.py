"""Whatever happens to voters and connections, an observer applies the committed log, each entry once."""

from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from envelope.types import LogIndex, MonotonicNs, NodeId
from metadata.raft.events import Apply, CompactLog, MetadataLeaderChanged, Restore
from metadata.raft.messages.observer_messages import Observe, ObserverAnswer, ObserverMessage, VoterStatus
from metadata.raft.observer import (
    Observer,
    ObserverEvent,
    ReceivedFromVoter,
    SendToVoter,
    TimePassed,
    VoterConnected,
    VoterDisconnected,
)
from tests.support.example_counts import examples
from tests.support.raft_cluster import SETTINGS, TIMEOUT, A, B, C, RaftCluster

ME, VOTERS = NodeId("o"), (A, B, C)
STEPS = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 2), st.integers(0, 7)), min_size=20, max_size=100
)


class Observed:
    """A cluster with its observer, whose connections keep their order, and may bring old answers again."""

    def __init__(self) -> None:
        self.cluster = RaftCluster.led_by_a(*VOTERS)
        self.observer = Observer(ME, VOTERS, SETTINGS)
        self.applied: dict[LogIndex, bytes] = {}
        self.last = LogIndex(0)
        self.number = 0
        self.connected: set[NodeId] = set()
        self.questions: dict[NodeId, Observe] = {}
        self.to_observer: dict[NodeId, deque[ObserverMessage]] = {voter: deque() for voter in VOTERS}
        self.old: list[ObserverAnswer] = []

    def give(self, event: ObserverEvent) -> None:
        for action in self.observer.handle(event, self.cluster.clock.now):
            match action:
                case SendToVoter(question):
                    assert question.after == self.last, "it asks for what it lacks"
                    self.questions[question.target] = question
                case Apply(entries):
                    for entry in entries:
                        assert entry.index == self.last + 1
                        self.applied[entry.index], self.last = entry.payload, entry.index
                case Restore(snapshot):
                    assert snapshot.index > self.last
                    self.applied = {LogIndex(0): snapshot.payload}
                    self.last = snapshot.index
                case MetadataLeaderChanged():
                    pass
        self.check()

    def check(self) -> None:
        """Everything it has was applied by a voter: what the cluster holds to be committed."""
        assert self.observer.applied == self.last
        for index, payload in self.applied.items():
            if index:
                assert self.cluster._committed[index].payload == payload

    def step(self, kind: int, which: int, much: int) -> None:
        voter = VOTERS[which]
        raft = self.cluster[voter].raft
        match kind:
            case 0 | 1:
                self.number += 1
                self.cluster.propose(voter, b"%d" % self.number)
            case 2:
                self.cluster.run()
            case 3:
                self.cluster.let_pass((much + 1) * TIMEOUT // 4)
                self.give(TimePassed())
            case 4 if raft.applied:
                payload = b"state %d" % raft.applied
                self.cluster.give(voter, CompactLog(raft.applied, payload))
            case 5:
                self.cluster[voter].restart()
                self.cut(voter)
            case 6:
                self.cluster.cut ^= {voter}
            case 7:
                if voter in self.connected:
                    self.cut(voter)
                else:
                    self.connect(voter)
            case 8 if self.old:
                again = self.old[much % len(self.old)]
                self.to_observer[again.source].append(again)
            case _:
                self.serve(voter)

    def connect(self, voter: NodeId) -> None:
        self.connected.add(voter)
        self.give(VoterConnected(voter))

    def cut(self, voter: NodeId) -> None:
        self.to_observer[voter].clear()
        self.questions.pop(voter, None)
        self.connected.discard(voter)
        self.give(VoterDisconnected(voter))

    def serve(self, voter: NodeId) -> None:
        """Have a voter say what it has to say, and the observer hear it."""
        if voter not in self.connected:
            return
        raft, messages = self.cluster[voter].raft, self.to_observer[voter]
        messages.append(VoterStatus(voter, ME, raft.term, raft.leader or NodeId("")))
        question = self.questions.get(voter)
        answer = None if question is None else raft.answer(question)
        if answer is not None:
            del self.questions[voter]
            messages.append(answer)
            self.old.append(answer)
        while messages:
            message = messages.popleft()
            self.give(ReceivedFromVoter(message))


@settings(max_examples=examples(200))
@given(STEPS)
def test_an_observer_has_what_is_committed_and_catches_up(steps: list[tuple[int, int, int]]) -> None:
    observed = Observed()
    for step in steps:
        observed.step(*step)
    observed.cluster.cut.clear()
    for voter in VOTERS:
        if voter not in observed.connected:
            observed.connect(voter)
    for _ in range(20):
        observed.cluster.let_pass(TIMEOUT)
        for voter in VOTERS:
            observed.serve(voter)
            observed.serve(voter)
        observed.give(TimePassed())
    newest = max(observed.cluster[voter].raft.applied for voter in VOTERS)
    assert observed.last == newest
    assert observed.observer.leader in VOTERS
    assert observed.observer.wake_at > MonotonicNs(0)
