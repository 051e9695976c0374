"""At most one process leads a stream in an epoch; it holds all that is committed.

It speaks with a lease only.
"""

from collections.abc import Iterable

from envelope.types import LeaderEpoch, NodeId, StreamName
from jetstream.replica.leader_events import Action, AnswerFollower
from jetstream.replica.wire import RefusedMessage
from tests.simulation.replica.checkers.committed import Committed
from tests.simulation.replica.log_image import LogImage
from tests.simulation.violation import Violation

Process = tuple[NodeId, int]
"""A node and the number of its life."""


class Reigns:
    """Who led under each epoch."""

    def __init__(self) -> None:
        self._leaders: dict[tuple[StreamName, LeaderEpoch], Process] = {}
        self._newest: dict[StreamName, LeaderEpoch] = {}

    def begun(
        self, leader: Process, epoch: LeaderEpoch, image: LogImage, committed: Committed, newest: LeaderEpoch
    ) -> None:
        """A process begins to lead, with this log; the catalogue is at epoch ``newest``."""
        stream = image.stream
        known = self._leaders.setdefault((stream, epoch), leader)
        if known != leader:
            raise Violation(f"epoch {epoch} of {stream} has two leaders: {known} and {leader}")
        if epoch < newest:
            return  # it has not heard yet that it was replaced
        if image.log_end < committed.end or not committed.is_in(image, committed.end):
            raise Violation(
                f"{leader[0]} leads {stream} in epoch {epoch} with a log to {image.log_end}; "
                f"committed is {committed.end}"
            )


def check_speech(name: str, actions: Iterable[Action], *, holds_leadership: bool) -> None:
    """Check what a leader wants done: nothing but refusals without a lease or after its reign."""
    if holds_leadership:
        return
    said = [
        action
        for action in actions
        if not (isinstance(action, AnswerFollower) and isinstance(action.answer, RefusedMessage))
    ]
    if said:
        raise Violation(f"{name}: {said[0]} without a lease, or after the reign")
