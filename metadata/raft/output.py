"""The actions of one event, gathered so that all that must be durable leaves in one write.

Also knows what of the voter's state is durable. The shell writes in order, but takes its time, and the voter
goes on meanwhile: a later event may replace entries that are still being written. So every write remembers
how far it makes the *present* log durable, and that is lowered when the log changes under it.
"""

from collections import deque
from dataclasses import dataclass

from envelope.types import LogIndex
from metadata.raft.events import Action, Persist, Send
from metadata.raft.log import RaftLog
from metadata.raft.messages.voter_messages import Message
from metadata.raft.state import HardState, Snapshot


@dataclass(slots=True)
class _Write:
    """A write that was not reported yet, and the state that is durable once it is."""

    number: int
    hard_state: HardState
    durable_index: LogIndex


class ActionBuffer:
    """See the module.

    Invariant:
        R9: a promise leaves only when everything that this voter has decided before it is durable.
    """

    def __init__(self, hard_state: HardState, last_index: LogIndex) -> None:
        """Begin with the stored state."""
        self._durable_hard_state = hard_state
        self._durable_index = last_index
        self._begun_hard_state = hard_state
        self._writes: deque[_Write] = deque()
        self._number = 0
        self._actions: list[Action] = []
        self._promises: list[Send] = []
        self._changed_from: LogIndex | None = None
        self._snapshot: Snapshot | None = None

    @property
    def durable_hard_state(self) -> HardState:
        """Term and vote that a restart would find."""
        return self._durable_hard_state

    @property
    def durable_index(self) -> LogIndex:
        """A restart would find the present log up to here."""
        return self._durable_index

    def add(self, action: Action) -> None:
        """Add an action for the shell."""
        self._actions.append(action)

    def send(self, message: Message) -> None:
        """Send a message that rests on nothing that a crash could undo."""
        self._actions.append(Send(message))

    def promise(self, message: Message) -> None:
        """Send this once everything up to now is durable."""
        self._promises.append(Send(message))

    def changed_from(self, first: LogIndex) -> None:
        """Write the log's entries from ``first`` on; durable ones of them are replaced."""
        self._lower(LogIndex(first - 1))
        self._changed_from = first if self._changed_from is None else min(self._changed_from, first)

    def compacted(self, snapshot: Snapshot) -> None:
        """Write a snapshot of entries that are durable already."""
        assert snapshot.index <= self._durable_index, f"R9: snapshot {snapshot.index} of what is not durable"
        self._snapshot = snapshot

    def replaced(self, snapshot: Snapshot, commit: LogIndex) -> None:
        """Write a snapshot instead of the log, with which it agrees up to ``commit``, below its index."""
        self._lower(commit)
        self._snapshot, self._changed_from = snapshot, None

    def persisted(self, number: int) -> None:
        """Record that the writes up to that number are durable."""
        assert number <= self._number, f"write {number} was never begun, the last one is {self._number}"
        while self._writes and self._writes[0].number <= number:
            write = self._writes.popleft()
            self._durable_hard_state = write.hard_state
            self._durable_index = max(self._durable_index, write.durable_index)

    def flush(self, hard_state: HardState, log: RaftLog) -> list[Action]:
        """Return the gathered actions, the write last, for a voter with this state and this log."""
        actions = self._actions
        actions += self._written(hard_state, log)
        self._actions, self._promises = [], []
        self._changed_from = self._snapshot = None
        return actions

    def _written(self, hard_state: HardState, log: RaftLog) -> list[Action]:
        """Return the promises and the write they wait for, if there is anything to wait for."""
        changed = None if hard_state == self._begun_hard_state else hard_state
        is_empty = changed is None and self._snapshot is None and self._changed_from is None
        if is_empty and not (self._promises and self._writes):
            is_durable = (self._durable_hard_state, self._durable_index) == (hard_state, log.last_index)
            assert is_durable or not self._promises, f"R9: up to {self._durable_index} is durable: {log}"
            return [*self._promises]
        self._number += 1
        self._begun_hard_state = hard_state
        self._writes.append(_Write(self._number, hard_state, log.last_index))
        entries = () if self._changed_from is None else log.between(self._changed_from, log.last_index)
        return [Persist(self._number, changed, self._snapshot, entries, tuple(self._promises))]

    def _lower(self, index: LogIndex) -> None:
        self._durable_index = min(self._durable_index, index)
        for write in self._writes:
            write.durable_index = min(write.durable_index, index)
