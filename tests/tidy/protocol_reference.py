"""docs/protocol, JSON Schemas and test vectors: ``python -m tests.tidy.protocol_reference`` writes it.

The vectors are a conversation with the real server over a stream whose batches are among them: whoever
writes a reader can take its frames apart, and whoever writes a server can answer them.
"""

import asyncio
import base64
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pydantic import BaseModel

from envelope.types import Compression, Offset
from jetstream.log.format.batch import BatchFlags, decode, encode, iter_frames, verified_batches
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
    LeftResponse,
)
from jetstream.protocol.requests import Cancel, Fetch, GetMetadata, Hello, ListOffsets, ShowTicket
from jetstream.protocol.responses import (
    FetchResponse,
    HelloResponse,
    ListOffsetsResponse,
    MetadataResponse,
    SocketErrorResponse,
    TicketShownResponse,
)
from tests.support.sockets import EPOCH, RawPeer, World, records_batch, serving
from tests.tidy.source_tree import ROOT

DIRECTORY: Final = ROOT / "docs" / "protocol"
STREAM: Final = "orders"
HIGH_WATERMARK: Final = 7
_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

REQUESTS: Final[Mapping[str, type[BaseModel]]] = {
    "hello": Hello,
    "metadata": GetMetadata,
    "list_offsets": ListOffsets,
    "fetch": Fetch,
    "cancel": Cancel,
    "ticket": ShowTicket,
    "find_coordinator": FindCoordinator,
    "join_group": JoinGroup,
    "heartbeat": SendHeartbeat,
    "release": ReleasePartitions,
    "leave_group": LeaveGroup,
    "commit_cursors": CommitCursors,
    "fetch_cursors": FetchCursors,
}
RESPONSES: Final[Mapping[str, type[BaseModel]]] = {
    "hello": HelloResponse,
    "ticket": TicketShownResponse,
    "metadata": MetadataResponse,
    "list_offsets": ListOffsetsResponse,
    "fetch": FetchResponse,
    "find_coordinator": CoordinatorResponse,
    "join_group": AssignmentResponse,
    "heartbeat": HeartbeatResponse,
    "release": AssignmentResponse,
    "leave_group": LeftResponse,
    "commit_cursors": CommittedResponse,
    "fetch_cursors": CursorsResponse,
    "error": SocketErrorResponse,
}

BYTES: Final = {"op": "list_offsets", "stream": STREAM, "at": "bytes"}
CONVERSATION: Final[Sequence[tuple[str, dict[str, object]]]] = [
    ("hello comes first", {"op": "hello", "protocol": 1, "client": "vectors", "client_version": "1"}),
    ("all streams", {"op": "metadata"}),
    ("one that does not exist is left out", {"op": "metadata", "streams": ["orders", "nothing"]}),
    ("the log start", {"op": "list_offsets", "stream": STREAM, "at": "earliest"}),
    ("the high watermark", {"op": "list_offsets", "stream": STREAM, "at": "latest"}),
    ("a moment", {"op": "list_offsets", "stream": STREAM, "at": "timestamp", "timestamp": 3_000_001}),
    ("a moment to come", {"op": "list_offsets", "stream": STREAM, "at": "timestamp", "timestamp": 1 << 60}),
    ("a transaction id", {"op": "list_offsets", "stream": STREAM, "at": "txid", "txid": 3}),
    ("as many batches as fit", {**BYTES, "offset": 0, "bytes": 3000}),
    ("one that does not fit", {**BYTES, "offset": 4, "bytes": 1}),
    ("no bytes yet", {**BYTES, "offset": 7, "bytes": 1}),
    ("bytes of no place", {**BYTES, "offset": 8, "bytes": 1}),
    ("one batch, not compressed", {"op": "fetch", "stream": STREAM, "offset": 0, "max_bytes": 1}),
    ("from the middle of an LZ4 batch", {"op": "fetch", "stream": STREAM, "offset": 3, "max_bytes": 1}),
    ("a ZSTD batch", {"op": "fetch", "stream": STREAM, "offset": 5, "max_bytes": 1}),
    ("all batches", {"op": "fetch", "stream": STREAM, "offset": 0, "incarnation": "first"}),
    ("at the high watermark, not waiting", {"op": "fetch", "stream": STREAM, "offset": 7}),
    ("where it stops", {"op": "fetch", "stream": STREAM, "offset": 4, "end": 4, "max_wait_ms": 60_000}),
    ("a cursor begins", {"op": "fetch", "stream": STREAM, "offset": 0, "cursor": 1, "max_bytes": 1}),
    ("and goes on", {"op": "fetch", "stream": STREAM, "offset": "next", "cursor": 1, "max_bytes": 1}),
    ("a cursor that stands nowhere", {"op": "fetch", "stream": STREAM, "offset": "next", "cursor": 2}),
    ("next without a cursor", {"op": "fetch", "stream": STREAM, "offset": "next"}),
    ("out of range", {"op": "fetch", "stream": STREAM, "offset": 99}),
    ("another history", {"op": "fetch", "stream": STREAM, "offset": 3, "last_epoch": 9}),
    ("another life", {"op": "fetch", "stream": STREAM, "offset": 3, "incarnation": "second"}),
    ("an unknown stream", {"op": "fetch", "stream": "nothing", "offset": 0}),
    ("an unknown op", {"op": "produce"}),
    ("an unknown field", {"op": "fetch", "stream": STREAM, "offset": 0, "filter": "x"}),
    ("a wrong type", {"op": "fetch", "stream": STREAM, "offset": "0"}),
    ("a pattern that is none", {"op": "fetch", "stream": STREAM, "offset": 0, "subject": "a..b"}),
    ("hello again", {"op": "hello", "protocol": 1}),
]  # fmt: skip

BREAKING: Final[Sequence[tuple[str, bytes]]] = [
    ("a request before hello", encode_head(b'{"op":"metadata","id":1}')),
    ("no JSON", encode_head(b"nonsense")),
    ("no object", encode_head(b"[]")),
    ("no id", encode_head(b'{"op":"hello","protocol":1}')),
    ("a cancel before hello", encode_head(b'{"op":"cancel","id":0}')),
    ("a cancel of nothing", encode_head(b'{"op":"cancel"}')),
    ("an empty header", bytes(12)),
    ("a header above the limit", (65_537).to_bytes(4, "little") + bytes(8)),
    ("a request with a body", encode_head(b'{"op":"hello","id":0,"protocol":1}', 1) + b"x"),
]


def schemas() -> dict[str, dict[str, object]]:
    """Return the JSON Schema of every header by file name."""
    found: dict[str, dict[str, object]] = {}
    for name, model in REQUESTS.items():
        found[f"{name}.request"] = {"$schema": _DIALECT, **model.model_json_schema(mode="validation")}
    for name, model in RESPONSES.items():
        found[f"{name}.response"] = {"$schema": _DIALECT, **_sealed(model)}
    return found


def _sealed(model: type[BaseModel]) -> dict[str, Any]:
    """Return the schema of a response with the checksum that every one of them has."""
    schema = model.model_json_schema(mode="serialization")
    schema["properties"]["crc"] = {
        "description": "CRC32C of the header without this field, which is the last",
        "pattern": "^[0-9a-f]{8}$",
        "type": "string",
    }
    schema["required"].append("crc")
    return schema


def a_stream_of_batches() -> list[bytes]:
    """Return three sealed batches with seven records, compressed in every way there is."""
    batches: list[bytes] = []
    for base, values, compression in (
        (0, [b"one", b"", None], Compression.NONE),
        (3, [b"four" * 20, b"five" * 20], Compression.LZ4),
        (5, [b"six" * 20, b"seven" * 20], Compression.ZSTD),
    ):
        records = records_batch(base, values, 1_000_000 * (base + 1))
        unsealed = encode(records, Offset(base), EPOCH, compression)
        batches.append(bytes(unsealed.seal(BatchFlags(0))))
    return batches


def records_in(batches: Sequence[bytes]) -> list[dict[str, Any]]:
    """Return the records of ``batches`` as JSON has them; bytes in base64."""
    found: list[dict[str, Any]] = []
    for batch in batches:
        for frame in iter_frames(batch):
            found += [_as_json(record) for record in _plain(decode(frame)[1])]
    return found


def _plain(records: pa.RecordBatch) -> list[dict[str, Any]]:
    column = records.schema.get_field_index("timestamp")
    times = records.column(column).cast(pa.int64())
    return records.set_column(column, pa.field("timestamp", pa.int64()), times).to_pylist()


def _as_json(record: dict[str, Any]) -> dict[str, Any]:
    for name in ("key", "value"):
        record[name] = _base64(record[name])
    record["headers"] = [{"key": each["key"], "value": _base64(each["value"])} for each in record["headers"]]
    return record


def _base64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def load_stream(world: World, batches: Sequence[bytes]) -> None:
    """Serve a stream with exactly these batches."""
    stream = world.stream(STREAM)
    for batch in batches:
        stream.log.writer.append_sealed(verified_batches(batch), stream.log.reader.last_timestamp)
    stream.commit()


async def exchange(peer: RawPeer, request: bytes) -> bytes:
    """Send one frame and return the frame that answers it."""
    await peer.send(request)
    header, body = await peer.raw_response()
    return header + body


async def vectors(batches: Sequence[bytes]) -> dict[str, Any]:
    """Return what a server says to every request, over a stream with these batches."""
    conversation, breaking = [], []
    with tempfile.TemporaryDirectory() as root:
        async with serving(Path(root) / "data") as world:
            load_stream(world, batches)
            peer = RawPeer(world.port)
            for number, (name, fields) in enumerate(CONVERSATION):
                request = encode_head(json.dumps({**fields, "id": number}).encode())
                answer = await exchange(peer, request)
                conversation.append({"name": name, "request": request.hex(), "response": answer.hex()})
            peer.close()
            for name, request in BREAKING:
                peer = RawPeer(world.port)
                answer = await exchange(peer, request)
                breaking.append({"name": name, "request": request.hex(), "response": answer.hex()})
                peer.close()
    return {
        "stream": STREAM,
        "batches": [batch.hex() for batch in batches],
        "records": records_in(batches),
        "conversation": conversation,
        "breaking": breaking,
    }


def write(directory: Path) -> None:
    """Write everything that is generated."""
    for name, schema in schemas().items():
        _write(directory / f"{name}.json", schema)
    _write(directory / "vectors.json", asyncio.run(vectors(a_stream_of_batches())))


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write(DIRECTORY)
