"""Reports of followers that do not hear their leaders, and the leaders that were replaced for it."""

from dataclasses import dataclass, field

from envelope.types import LeaderEpoch, MonotonicNs, NodeId, StreamName


@dataclass(slots=True)
class _Reign:
    """Reports about one reign; those about an earlier one are void."""

    leader_epoch: LeaderEpoch
    reported: dict[NodeId, MonotonicNs] = field(default_factory=dict)


class SilenceReports:
    """The newest report of every follower, by stream."""

    def __init__(self, valid_ns: int, accused_ns: int) -> None:
        """Know of nothing."""
        self._valid_ns = valid_ns
        self._accused_ns = accused_ns
        self._reigns: dict[StreamName, _Reign] = {}
        self._accused: dict[tuple[StreamName, NodeId], MonotonicNs] = {}

    def add(self, stream: StreamName, leader_epoch: LeaderEpoch, reporter: NodeId, now: MonotonicNs) -> None:
        """Record that ``reporter`` does not hear the leader of that reign."""
        reign = self._reigns.get(stream)
        if reign is None or reign.leader_epoch < leader_epoch:
            reign = self._reigns[stream] = _Reign(leader_epoch)
        if reign.leader_epoch == leader_epoch:
            reign.reported[reporter] = now

    def reporters(self, stream: StreamName, leader_epoch: LeaderEpoch, now: MonotonicNs) -> set[NodeId]:
        """Return the nodes that report the leader of that reign as silent."""
        reign = self._reigns.get(stream)
        if reign is None or reign.leader_epoch != leader_epoch:
            return set()
        return {node for node, at in reign.reported.items() if now < at + self._valid_ns}

    def accuse(self, stream: StreamName, leader: NodeId, now: MonotonicNs) -> None:
        """Record that this leader is replaced because its followers did not hear it."""
        self._accused[stream, leader] = now

    def is_accused(self, stream: StreamName, node: NodeId, now: MonotonicNs) -> bool:
        """Return whether the node was replaced for its silence lately."""
        at = self._accused.get((stream, node))
        return at is not None and now < at + self._accused_ns

    def forget(self, stream: StreamName) -> None:
        """Forget a stream that is gone."""
        self._reigns.pop(stream, None)
        for key in [key for key in self._accused if key[0] == stream]:
            del self._accused[key]

    def expire(self, now: MonotonicNs) -> None:
        """Forget reports that count no more, which bounds the memory."""
        self._accused = {key: at for key, at in self._accused.items() if now < at + self._accused_ns}
        self._reigns = {
            stream: reign
            for stream, reign in self._reigns.items()
            if any(now < at + self._valid_ns for at in reign.reported.values())
        }
