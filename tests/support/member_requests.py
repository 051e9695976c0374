"""One request of each kind that needs the right to be a member of a group."""

from jetstream.protocol.group_requests import (
    CommitCursors,
    FetchCursors,
    FindCoordinator,
    JoinGroup,
    LeaveGroup,
    PartitionCursor,
    ReleasePartitions,
    StreamClaims,
    StreamNumbers,
)
from jetstream.protocol.requests import Request


def member_requests(group: str, stream: str = "orders", first_id: int = 1) -> list[Request]:
    """Return the requests, numbered from ``first_id`` on; heartbeats are answered member by member."""
    cursor = PartitionCursor(stream=stream, offset=0)
    return [
        FindCoordinator(id=first_id, group=group),
        JoinGroup(
            id=first_id + 1,
            group=group,
            client="c",
            number=1,
            streams=[stream],
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            owned=[],
        ),
        ReleasePartitions(
            id=first_id + 2,
            group=group,
            member="m",
            claims=[StreamClaims(stream=stream, partitions=[[0, 1]])],
        ),
        LeaveGroup(id=first_id + 3, group=group, member="m"),
        CommitCursors(id=first_id + 4, group=group, member="m", generation=1, number=1, cursors=[cursor]),
        FetchCursors(id=first_id + 5, group=group, partitions=[StreamNumbers(stream=stream, numbers=[0])]),
    ]
