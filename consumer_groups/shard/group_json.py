"""A group as JSON: the value of its key in the stream where groups are kept. Equal groups are equal bytes.

    {"version": 1, "name": "…", "assignor": "sticky", "generation": 7,
     "members": [{"member_id": "…", "client": "…", "request": 1, "streams": ["orders"],
                  "session_timeout_ns": …, "rebalance_timeout_ns": …,
                  "instance_id": null, "node": null, "rack": null, "assigned": 7}],
     "partitions": {"orders": [[0, 6, 0], [1, 7, 0]]},
     "gone": [["client", 3]]}

Members are ordered by id. ``partitions`` has a row for each partition of a stream: the owner, the generation
since which it is that, and who is to be; members by their place, null where there is none. ``gone`` has the
oldest first.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Final, NoReturn

from consumer_groups.assignment.assignors import Assignor
from consumer_groups.assignment.partitions import Generation, GroupName, InstanceId, MemberId, Partition
from consumer_groups.coordinator.group_state import ClientId, Grant, GroupState, MemberState
from envelope.errors import CorruptDataError
from envelope.types import NodeId, StreamName

VERSION: Final = 1
_Json = object


def to_json(state: GroupState) -> bytes:
    """Return the group: UTF-8, keys sorted, no spaces."""
    ids = sorted(state.members)
    places: Mapping[MemberId | None, int] = {member_id: place for place, member_id in enumerate(ids)}

    def row(partition: Partition) -> list[int | None]:
        grant = state.grants.get(partition)
        owner, since = (None, None) if grant is None else (places[grant.member_id], grant.generation)
        return [owner, since, places.get(state.target.get(partition))]

    body = {
        "version": VERSION,
        "name": state.name,
        "assignor": state.assignor.value,
        "generation": state.generation,
        "members": [_member_row(state.members[member_id]) for member_id in ids],
        "partitions": {
            name: [row(Partition(name, number)) for number in range(count)]
            for name, count in state.streams.items()
        },
        "gone": [[client, request] for client, request in state.gone.items()],
    }
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def from_json(value: bytes) -> GroupState:
    """Return the group that `to_json` was given.

    Raises:
        CorruptDataError: it is no group, of another version, or contradicts itself. A group is never read in
            part: what is left out would be given to others.
    """
    try:
        body = json.loads(value, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise CorruptDataError(f"group of {len(value)} bytes is no JSON: {error}") from error
    row = _object(body)
    if row.get("version") != VERSION:
        _refuse(f"version {row.get('version')!r}, this one reads {VERSION}")
    _only(row, "version", "name", "assignor", "generation", "members", "partitions", "gone")
    members = [_member(_object(each)) for each in _list(row["members"])]
    return _checked(_state(row, members), members)


def _member_row(member: MemberState) -> dict[str, _Json]:
    return {
        "member_id": member.member_id,
        "client": member.client,
        "request": member.request,
        "streams": sorted(member.streams),
        "session_timeout_ns": member.session_timeout_ns,
        "rebalance_timeout_ns": member.rebalance_timeout_ns,
        "instance_id": member.instance_id,
        "node": member.node,
        "rack": member.rack,
        "assigned": member.assigned,
    }


def _member(row: Mapping[str, _Json]) -> MemberState:
    _only(
        row,
        *("member_id", "client", "request", "streams", "session_timeout_ns", "rebalance_timeout_ns"),
        *("instance_id", "node", "rack", "assigned"),
    )
    instance_id, node = row["instance_id"], row["node"]
    return MemberState(
        member_id=MemberId(_text(row["member_id"])),
        client=ClientId(_text(row["client"])),
        request=_number(row["request"], least=None),
        streams=frozenset(StreamName(_text(name)) for name in _list(row["streams"])),
        session_timeout_ns=_number(row["session_timeout_ns"], least=1),
        rebalance_timeout_ns=_number(row["rebalance_timeout_ns"], least=1),
        instance_id=None if instance_id is None else InstanceId(_text(instance_id)),
        node=None if node is None else NodeId(_text(node)),
        rack=None if row["rack"] is None else _text(row["rack"]),
        assigned=Generation(_number(row["assigned"])),
    )


def _state(row: Mapping[str, _Json], members: Sequence[MemberState]) -> GroupState:
    grants: dict[Partition, Grant] = {}
    target: dict[Partition, MemberId] = {}
    streams: dict[StreamName, int] = {}
    for name, rows in sorted(_object(row["partitions"]).items()):
        streams[StreamName(_text(name))] = len(_list(rows))
        for number, each in enumerate(_list(rows)):
            partition = Partition(StreamName(name), number)
            owner, since, wanted = _list(each, length=3)
            if owner is not None:
                grants[partition] = Grant(_at(members, owner).member_id, Generation(_number(since)))
            elif since is not None:
                _refuse(f"{partition} has no owner since {since!r}")
            if wanted is not None:
                target[partition] = _at(members, wanted).member_id
    pairs = [_list(each, length=2) for each in _list(row["gone"])]
    gone = {ClientId(_text(client)): _number(request, least=None) for client, request in pairs}
    if len(gone) != len(pairs):
        _refuse("a client is gone twice")
    return GroupState(
        name=GroupName(_text(row["name"])),
        assignor=_assignor(row["assignor"]),
        generation=Generation(_number(row["generation"])),
        members={member.member_id: member for member in members},
        streams=streams,
        grants=grants,
        target=target,
        gone=gone,
    )


def _checked(state: GroupState, members: Sequence[MemberState]) -> GroupState:
    problems = state.problems()
    if [member.member_id for member in members] != sorted(state.members):
        problems.append("members are not in order, or there twice")
    if problems:
        _refuse("; ".join(problems[:3]))
    return state


def _refuse(why: str) -> NoReturn:
    raise CorruptDataError(f"a group's state cannot be read: {why}")


def _unique(pairs: list[tuple[str, _Json]]) -> dict[str, _Json]:
    row = dict(pairs)
    if len(row) != len(pairs):
        _refuse("a key is there twice")
    return row


def _only(row: Mapping[str, _Json], *keys: str) -> None:
    if row.keys() != set(keys):
        _refuse(f"keys {sorted(row)} instead of {sorted(keys)}")


def _object(value: _Json) -> dict[str, _Json]:
    return value if isinstance(value, dict) else _refuse(f"{value!r:.40} is no object")


def _list(value: _Json, length: int | None = None) -> list[_Json]:
    if not isinstance(value, list) or length not in (None, len(value)):
        _refuse(f"{value!r:.40} is no list of {length or 'any'} values")
    return value


def _text(value: _Json) -> str:
    if not isinstance(value, str) or not value or not value.isprintable():  # halves of characters are not
        _refuse(f"{value!r:.40} is no text")
    return value


def _number(value: _Json, least: int | None = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or (least is not None and value < least):
        _refuse(f"{value!r:.40} is no number from {least} on")
    return value


def _at(members: Sequence[MemberState], place: _Json) -> MemberState:
    number = _number(place)
    return members[number] if number < len(members) else _refuse(f"there is no member {number}")


def _assignor(value: _Json) -> Assignor:
    try:
        return Assignor(_text(value))
    except ValueError as error:
        raise CorruptDataError(f"a group's state names no assignor: {error}") from error
