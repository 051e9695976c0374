"""What a voter promises others is durable before it says so."""

from collections.abc import Mapping

from envelope.types import LogIndex, NodeId, Term
from metadata.raft.messages.voter_messages import (
    AppendRejection,
    AppendResponse,
    Message,
    VoteRequest,
    VoteResponse,
)
from tests.simulation.raft.disk import LogImage
from tests.simulation.violation import Violation

_PROMISES = (VoteResponse, AppendResponse, AppendRejection, VoteRequest)


class Promises:
    """Compares what leaves a voter with its disk, and with the log of the leader it is said to."""

    def __init__(self, disks: Mapping[NodeId, LogImage]) -> None:
        self._disks = disks
        self._votes: dict[tuple[NodeId, Term], NodeId] = {}
        self._acknowledged: dict[NodeId, tuple[Term, LogIndex]] = {}

    def wrote(self, name: NodeId) -> None:
        """A write to the disk ``name`` is durable."""
        disk = self._disks[name]
        state = disk.hard_state
        if state.vote is not None:
            before = self._votes.get((name, state.term), state.vote)
            if before != state.vote:
                raise Violation(f"{name} votes for {state.vote} after {before} in term {state.term}")
            self._votes[name, state.term] = state.vote
        term, match = self._acknowledged.get(name, (-1, 0))
        if state.term == term and disk.last_index < match:
            raise Violation(f"{name} acknowledged {match} in term {term}, its disk ends at {disk.last_index}")

    def disk_lost(self, name: NodeId) -> None:
        """A voter starts without its disk: it is no candidate any more for whom a vote could count."""
        self._votes = {vote: candidate for vote, candidate in self._votes.items() if candidate != name}

    def sent(self, message: Message, leader_log: LogImage | None) -> None:
        """A message may leave from now on; ``leader_log`` is its target's if that leads in its term."""
        if not isinstance(message, _PROMISES):
            return
        disk = self._disks[message.source]
        if disk.hard_state.term < message.term:
            raise Violation(f"{message} leaves while the disk is in term {disk.hard_state.term}")
        if isinstance(message, VoteRequest):
            self._vote_is_durable(message, message.source)
        elif isinstance(message, VoteResponse) and message.granted:
            self._vote_is_durable(message, message.target)
        elif isinstance(message, AppendResponse):
            _entries_are_durable(message, disk, leader_log)
            term, match = self._acknowledged.get(message.source, (-1, 0))
            if (message.term, message.match) > (term, match):
                self._acknowledged[message.source] = message.term, message.match

    def _vote_is_durable(self, message: Message, candidate: NodeId) -> None:
        vote = self._votes.get((message.source, message.term))
        if vote != candidate:
            raise Violation(f"{message} leaves while the durable vote is {vote}")


def _entries_are_durable(message: AppendResponse, disk: LogImage, leader_log: LogImage | None) -> None:
    if message.match > disk.last_index:
        raise Violation(f"{message} leaves while the disk ends at {disk.last_index}")
    here = disk.term_at(message.match)
    there = None if leader_log is None else leader_log.term_at(message.match)
    if here is not None and there is not None and here != there:
        raise Violation(f"{message} leaves with term {here} at {message.match}, the leader has {there}")
