"""What goes over the network: a question of a member or of its process, and the answer to it."""

from dataclasses import dataclass

from consumer_groups.assignment.partitions import GroupName
from consumer_groups.coordinator.events import Beat, ConnectionId
from consumer_groups.shard.events import Answer, GroupRequest


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """All members of a process are alive; it waits for news."""

    beats: tuple[Beat, ...]
    wait_ns: int


@dataclass(frozen=True, slots=True)
class Question:
    """Something that is asked of a coordinator."""

    connection: ConnectionId
    client: str | None
    """Whose it is; None: that of the process."""
    number: int
    """One that its process never gives again."""
    group: GroupName
    body: GroupRequest | Heartbeat


@dataclass(frozen=True, slots=True)
class Told:
    """What a coordinator answers."""

    question: Question
    answer: Answer


Message = Question | Told
