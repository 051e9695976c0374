"""Members without the client library: what they say is what a coordinator understands."""

from collections import Counter

from benchmarks.committers import commit_header
from benchmarks.group_members import Member, groups_of
from benchmarks.idle_members import dealt
from envelope.internal_streams import group_shard
from envelope.types import StreamName
from jetstream.protocol.group_requests import CommitCursors, PartitionCursor
from jetstream.protocol.requests import decode_request


def assignment(generation: int, keeps: list[list[int]], gives_up: list[list[int]]) -> dict[str, object]:
    stream = {"stream": "orders", "partitioned": True, "keeps": keeps, "gives_up": gives_up}
    return {"group": "g", "member": "m", "generation": generation, "streams": [stream]}


def test_a_commit_is_what_a_node_understands() -> None:
    member = Member("g", "client", ["a", "b"], member_id="m", generation=7)

    request = decode_request(commit_header(member, request_id=3, number=5, offset=42))

    assert isinstance(request, CommitCursors)
    assert (request.id, request.group, request.member) == (3, "g", "m")
    assert (request.generation, request.number, request.reset) == (7, 5, False)
    incarnation = request.cursors[0].incarnation
    expected = [PartitionCursor(stream=name, offset=42, incarnation=incarnation) for name in "ab"]
    assert request.cursors == expected


def test_a_member_releases_what_it_is_to_give_up() -> None:
    member = Member("g", "client", ["orders"])

    assert member.take(assignment(4, keeps=[[0, 1], [1, 4]], gives_up=[])) == []
    assert (member.member_id, member.generation, member.owned) == ("m", 4, 2)
    assert member.take(assignment(5, keeps=[[0, 1]], gives_up=[[1, 4]])) == [
        {"stream": "orders", "partitions": [[1, 4]]}
    ]
    assert member.owned == 1


def test_a_late_assignment_changes_nothing() -> None:
    member = Member("g", "client", ["orders"], member_id="m", generation=5, owned=1)

    assert member.take(assignment(4, keeps=[], gives_up=[[0, 1]])) == []
    assert (member.generation, member.owned) == (5, 1)


def test_all_groups_of_a_run_are_in_one_shard() -> None:
    groups = groups_of(StreamName("__cursors/3"), 50)

    assert len(set(groups)) == 50
    assert {group_shard(group) for group in groups} == {"__cursors/3"}


def test_members_of_one_group_are_on_different_connections() -> None:
    connections = dealt(groups=1_000, members=10, connections=100, streams=["s"])

    assert {len(members) for members in connections} == {100}
    for members in connections:
        assert len({member.group for member in members}) == 100
    count = Counter(member.group for members in connections for member in members)
    assert set(count.values()) == {10}
    assert len({member.client for members in connections for member in members}) == 10_000
