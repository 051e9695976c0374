"""A leader beside one that knows no steady state: after every event both must be the same."""

from collections.abc import Sequence

from envelope.types import MonotonicNs, Offset
from jetstream.replica.leader import DEFAULT_SETTINGS, Leader
from jetstream.replica.leader_events import Action, Appointment, Event, FetchArrived, LeaderLogSynced
from jetstream.replica.reconcile import LogState
from jetstream.replica.settings import ReplicaSettings
from metadata.lease import Lease


class CheckedLeader(Leader):
    """Handles what it can in its steady state, and its `definition` the same events without one.

    Attributes:
        definition: handles all by `Leader.handle`.
        steady_events: how many events the steady state has handled.
    """

    def __init__(
        self,
        appointment: Appointment,
        log: LogState,
        high_watermark: Offset,
        now: MonotonicNs,
        lease: Lease,
        settings: ReplicaSettings = DEFAULT_SETTINGS,
    ) -> None:
        """See `Leader`."""
        super().__init__(appointment, log, high_watermark, now, lease=lease, settings=settings)
        self.definition = Leader(appointment, log, high_watermark, now, lease=lease, settings=settings)
        self.steady_events = 0
        self._is_checking = False

    def handle(self, event: Event, now: MonotonicNs) -> tuple[Action, ...]:
        """See `Leader.handle`; a fetch and a grown log go by the methods of their own."""
        if self._is_checking:  # the steady state could not judge it
            self.steady_events -= 1
            return super().handle(event, now)
        self._is_checking = True
        actions: Sequence[Action]
        match event:
            case FetchArrived(follower, fetch):
                self.steady_events += 1
                actions = self.fetched(follower, fetch, now)
            case LeaderLogSynced(synced_end, log_end):
                self.steady_events += 1
                actions = self.log_synced(synced_end, log_end, now)
            case _:
                actions = super().handle(event, now)
        self._is_checking = False
        wanted = self.definition.handle(event, now)
        is_so, by_definition = _state(self, actions), _state(self.definition, wanted)
        if is_so != by_definition:  # raised, so that it is also found where asserts are switched off
            raise AssertionError(f"after {event} {is_so}, by definition {by_definition}")
        return wanted


def _state(leader: Leader, actions: Sequence[Action]) -> tuple[object, ...]:
    """Return what can be seen of a leader, and what it wants done."""
    return tuple(actions), str(leader), leader.follower_states(), leader.wake_at
