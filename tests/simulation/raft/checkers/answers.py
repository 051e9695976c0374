"""A vote goes to a log that is no older; an answer of an earlier term decides nothing."""

from collections.abc import Sequence

from envelope.types import Term
from metadata.raft.events import (
    Action,
    Apply,
    Event,
    MessageReceived,
    MetadataLeaderChanged,
    Persist,
    ReadReady,
)
from metadata.raft.messages.voter_messages import (
    AppendRejection,
    AppendResponse,
    PreVoteResponse,
    VoteRequest,
    VoteResponse,
    VoterHeartbeatResponse,
)
from tests.simulation.raft.disk import LogImage
from tests.simulation.violation import Violation

_ANSWERS = (AppendResponse, AppendRejection, VoterHeartbeatResponse, PreVoteResponse, VoteResponse)
_DECISIONS = (Apply, ReadReady, MetadataLeaderChanged)


def check_answers(event: Event, actions: Sequence[Action], log: LogImage, term: Term) -> None:
    """A voter with ``log``, in ``term`` before the ``event``, wants ``actions``."""
    if not isinstance(event, MessageReceived):
        return
    message = event.message
    if isinstance(message, VoteRequest):
        _candidate_is_no_older(message, actions, log)
    elif isinstance(message, _ANSWERS) and message.term < term:
        decisions = [action for action in actions if isinstance(action, _DECISIONS)]
        if decisions:
            raise Violation(f"in term {term} {message} leads to {decisions}")


def _candidate_is_no_older(request: VoteRequest, actions: Sequence[Action], log: LogImage) -> None:
    answers = [send.message for action in actions if isinstance(action, Persist) for send in action.then]
    granted = any(isinstance(answer, VoteResponse) and answer.granted for answer in answers)
    own = log.term_at(log.last_index), log.last_index
    if granted and (request.last_term, request.last_index) < own:
        raise Violation(f"{request} gets a vote from a log that ends with (term, index) {own}")
