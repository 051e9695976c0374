"""docs/protocol.md holds: its reader reads, its bytes and its numbers are the code's."""

import asyncio
import json
import re
import sys
from pathlib import Path

import pytest

from envelope.errors import OffsetOutOfRange, RequestCancelled
from envelope.limits import (
    FETCH_BYTES_DEFAULT,
    FETCH_BYTES_MAX,
    FETCH_WAIT_MS_MAX,
    FRAME_HEADER_BYTES_MAX,
    MIB,
    REQUESTS_IN_FLIGHT_MAX,
)
from envelope.types import Offset
from jetstream.log.format.schema import SCHEMA, SCHEMA_ID
from jetstream.protocol.frames import encode_head
from jetstream.protocol.group_requests import (
    CommitCursors,
    FetchCursors,
    FindCoordinator,
    JoinGroup,
    LeaveGroup,
    ReleasePartitions,
    SendHeartbeat,
)
from jetstream.protocol.group_responses import (
    AssignmentResponse,
    CommittedResponse,
    CoordinatorResponse,
    CursorsResponse,
    HeartbeatResponse,
)
from jetstream.protocol.liveness import Patience
from jetstream.protocol.requests import (
    Cancel,
    Fetch,
    GetMetadata,
    Hello,
    ListOffsets,
    ShowTicket,
    decode_request,
)
from jetstream.protocol.responses import (
    FetchResponse,
    HelloResponse,
    ListOffsetsResponse,
    MetadataResponse,
    Response,
    TicketShownResponse,
    decode_error,
    decode_response,
)
from tests.support.sockets import run, serving

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def documents() -> list[dict[str, object]]:
    """Every JSON object of the page; one may run over two lines."""
    joined = "".join(blocks("json")).replace("\n ", " ")
    return [json.loads(line) for line in joined.splitlines()]


def test_the_reader_on_the_page_reads_a_stream(tmp_path: Path) -> None:
    async def test() -> str:
        async with serving(tmp_path / "data") as world:
            stream = world.stream("s")
            stream.add(*([b"v%d" % number] * 50 for number in range(20)))
            stream.log.truncate_before(Offset(30), stream.high_watermark)
            (source,) = blocks("python")
            assert source.count("\n") < 100
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                source,
                "127.0.0.1",
                str(world.port),
                "s",
                stdout=asyncio.subprocess.PIPE,
            )
            printed, _ = await process.communicate()
            assert process.returncode == 0
            return printed.decode()

    expected = [f"{offset} s.{offset} {b'v%d' % (offset // 50)!r}" for offset in range(30, 1000)]
    assert run(test()).splitlines() == expected


def test_the_example_frame_is_what_is_sent() -> None:
    (hexadecimal,) = [text for text in blocks("") if text.startswith("22 00")]
    assert bytes.fromhex(hexadecimal) == encode_head(b'{"op":"hello","id":0,"protocol":1}')


def test_the_examples_are_valid() -> None:
    models: list[type[Response]] = [
        *(HelloResponse, TicketShownResponse, MetadataResponse, ListOffsetsResponse, ListOffsetsResponse),
        *(FetchResponse, FetchResponse),
        *(CoordinatorResponse, AssignmentResponse, HeartbeatResponse, CommittedResponse, CursorsResponse),
    ]
    requests = [json.dumps(fields).encode() for fields in documents() if "op" in fields]
    kinds = [
        *(Hello, ShowTicket, GetMetadata, ListOffsets, ListOffsets),
        *(Fetch, Fetch, Fetch, Fetch, Cancel, Fetch),
        *(FindCoordinator, JoinGroup, SendHeartbeat, ReleasePartitions, LeaveGroup),
        *(CommitCursors, FetchCursors),
    ]
    assert [type(decode_request(request)) for request in requests] == kinds
    responses = [fields for fields in documents() if "op" not in fields and "error" not in fields]
    for model, fields in zip(models, responses, strict=True):
        assert set(decode_response(model, fields).model_dump(exclude_none=True)) == set(fields)
    failed = [type(decode_error(fields)) for fields in documents() if "error" in fields]
    assert failed == [RequestCancelled, OffsetOutOfRange]


@pytest.mark.parametrize(
    "sentence",
    [
        f"1 to {FRAME_HEADER_BYTES_MAX:,}",
        f"Up to {REQUESTS_IN_FLIGHT_MAX} requests",
        f"| {FETCH_BYTES_DEFAULT // MIB} MiB | at most {FETCH_BYTES_MAX // MIB} MiB",
        f"at most {FETCH_WAIT_MS_MAX:,}.",
        f"Schema {SCHEMA_ID}:",
        f"{Patience().hello_ns // 10**9} s to say hello, {Patience().frame_ns // 10**9} s to\nfinish a frame",
        f"{Patience().stalled_ns // 10**9} s to take any",
        f"ask for nothing in {Patience().idle_ns // 60 // 10**9} minutes",
    ],
)
def test_the_numbers_are_the_codes(sentence: str) -> None:
    assert " ".join(sentence.split()) in " ".join(PAGE.split())


def test_the_schema_on_the_page_is_the_logs() -> None:
    assert (
        re.findall(r"^\| (\w+) \| [^|]*(?:int64|timestamp|utf8|binary)", PAGE, re.MULTILINE) == SCHEMA.names
    )
