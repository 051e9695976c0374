"""Requests and responses of consumer groups: what goes out comes back, and what is wrong is refused."""

import json
from typing import Any

import pytest

from consumer_groups.assignment.assignors import Assignor
from envelope.errors import RequestError, Unsupported
from envelope.group_errors import CursorBehind, MemberFenced
from jetstream.protocol.group_requests import (
    CommitCursors,
    FetchCursors,
    FindCoordinator,
    JoinGroup,
    LeaveGroup,
    MemberBeat,
    PartitionCursor,
    ReleasePartitions,
    SendHeartbeat,
    StreamClaims,
    StreamNumbers,
)
from jetstream.protocol.group_responses import (
    AssignedStream,
    AssignmentResponse,
    CommittedResponse,
    CoordinatorResponse,
    CursorsResponse,
    HeartbeatResponse,
    LeftResponse,
    MemberAssignment,
    MemberRefusal,
    StoredCursor,
)
from jetstream.protocol.requests import RefusedRequest, Request, decode_request, encode_request
from jetstream.protocol.responses import (
    Response,
    decode_response,
    encode_response,
    error_body,
    error_of,
    response_id,
)

CLAIMS = [StreamClaims(stream="orders", partitions=[[0, 3], [2, 7]])]
REQUESTS: list[Request] = [
    FindCoordinator(id=1, group="billing"),
    JoinGroup(
        id=2,
        group="shop/billing",
        client="c",
        number=3,
        streams=["orders"],
        session_timeout_ms=10_000,
        rebalance_timeout_ms=30_000,
        assignor=Assignor.RANGE,
        instance="i",
        owned=CLAIMS,
    ),
    SendHeartbeat(id=3, beats=[MemberBeat(group="billing", member="m", generation=4)], max_wait_ms=3000),
    ReleasePartitions(id=4, group="billing", member="m", claims=CLAIMS),
    LeaveGroup(id=5, group="billing", member="m", instance="i"),
    CommitCursors(
        id=6,
        group="billing",
        member="m",
        generation=4,
        number=9,
        cursors=[PartitionCursor(stream="orders", partition=2, offset=42, incarnation="ab", metadata="µ")],
        reset=True,
    ),
    FetchCursors(id=7, group="billing", partitions=[StreamNumbers(stream="orders", numbers=[0, 1])]),
]
ASSIGNMENT = MemberAssignment(
    group="billing",
    member="m",
    generation=4,
    streams=[AssignedStream(stream="orders", partitioned=True, keeps=[[0, 3]], gives_up=[[2, 4]])],
)
RESPONSES: list[Response] = [
    CoordinatorResponse(id=1, node="n", host="h", port=9292),
    AssignmentResponse(id=2, assignment=ASSIGNMENT),
    HeartbeatResponse(
        id=3,
        assignments=[ASSIGNMENT],
        refused=[MemberRefusal(group="g", member="m", error=error_body(MemberFenced("gone")))],
    ),
    LeftResponse(id=5),
    CommittedResponse(id=6, superseded=True),
    CursorsResponse(
        id=7, cursors=[StoredCursor(stream="orders", partition=0, offset=42, committed_at=1_764_000_000)]
    ),
]


@pytest.mark.parametrize("request_sent", REQUESTS, ids=lambda request: request.op)
def test_a_request_comes_back_as_it_was(request_sent: Request) -> None:
    assert decode_request(encode_request(request_sent)) == request_sent


@pytest.mark.parametrize("response", RESPONSES, ids=lambda response: type(response).__name__)
def test_a_response_comes_back_as_it_was(response: Response) -> None:
    fields, answered = response_id(encode_response(response))
    assert answered == response.id
    assert decode_response(type(response), fields) == response


def test_an_error_inside_a_response_keeps_its_type_and_numbers() -> None:
    error = error_of(error_body(CursorBehind("back", partition="orders[2]", offset=42)))
    assert isinstance(error, CursorBehind)
    assert error.detail == {"partition": "orders[2]", "offset": 42}


@pytest.mark.parametrize(
    ("op", "change"),
    [
        ("join_group", {"assignor": "fastest"}),
        ("join_group", {"streams": []}),
        ("join_group", {"session_timeout_ms": 10}),
        ("join_group", {"owned": [{"stream": "orders", "partitions": [[1]]}]}),
        ("join_group", {"client": ""}),
        ("heartbeat", {"beats": []}),
        ("heartbeat", {"beats": [{"group": "g", "member": "m", "generation": -1}]}),
        ("heartbeat", {"max_wait_ms": 60_001}),
        ("release", {"claims": []}),
        ("commit_cursors", {"cursors": []}),
        ("commit_cursors", {"cursors": [{"stream": "o", "partition": 0, "offset": 1 << 63}]}),
        ("commit_cursors", {"cursors": [{"stream": "o", "partition": 0, "offset": True}]}),
        ("commit_cursors", {"number": 1.0}),
        ("fetch_cursors", {"partitions": [{"stream": "orders", "numbers": [-1]}]}),
    ],
)
def test_a_value_out_of_its_range_is_refused(op: str, change: dict[str, Any]) -> None:
    with pytest.raises(RefusedRequest) as refused:
        decode_request(_changed(op, change))
    assert type(refused.value.error) is RequestError


@pytest.mark.parametrize("op", [request.op for request in REQUESTS])
def test_an_unknown_field_is_refused(op: str) -> None:
    with pytest.raises(RefusedRequest) as refused:
        decode_request(_changed(op, {"urgent": True}))
    assert isinstance(refused.value.error, Unsupported)


def _changed(op: str, change: dict[str, Any]) -> bytes:
    sent = next(request for request in REQUESTS if request.op == op)
    return json.dumps({**json.loads(encode_request(sent)), **change}).encode()
