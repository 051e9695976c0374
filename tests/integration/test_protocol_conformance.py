"""docs/protocol is true: the schemas are the code's, and server and client do what the vectors say."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from jetstream.log.format.batch import iter_frames
from jetstream.protocol.connection import (
    ClientConnection,
    ClientEvent,
    ConnectionBroken,
    ResponseFailed,
    ResponseReceived,
)
from jetstream.protocol.frames import PREFIX, BodyReceived, FrameReader, HeadReceived
from jetstream.protocol.requests import Cancel, RefusedRequest, decode_request
from tests.support.sockets import RawPeer, run, serving
from tests.tidy.protocol_reference import (
    BREAKING,
    CONVERSATION,
    DIRECTORY,
    exchange,
    load_stream,
    records_in,
    schemas,
)

VECTORS: dict[str, Any] = json.loads((DIRECTORY / "vectors.json").read_text(encoding="utf-8"))
BATCHES = [bytes.fromhex(batch) for batch in VECTORS["batches"]]


def frame_of(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Take one whole frame apart."""
    header_length, body_length = PREFIX.unpack_from(data)
    assert len(data) == PREFIX.size + header_length + body_length
    header = data[PREFIX.size : PREFIX.size + header_length]
    return json.loads(header), data[PREFIX.size + header_length :]


def headers(kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the op and the header of every request, or of every response, of the conversation."""
    for turn in VECTORS["conversation"]:
        op = frame_of(bytes.fromhex(turn["request"]))[0]["op"]
        yield op, frame_of(bytes.fromhex(turn[kind]))[0]


def test_the_schemas_are_the_models() -> None:
    written = {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in DIRECTORY.glob("*.json")
        if path.stem != "vectors"
    }
    assert written == schemas(), "run python -m tests.tidy.protocol_reference"


def test_the_vectors_are_of_today() -> None:
    assert [turn["name"] for turn in VECTORS["conversation"]] == [name for name, _ in CONVERSATION]
    assert [turn["name"] for turn in VECTORS["breaking"]] == [name for name, _ in BREAKING]
    for (_, fields), turn in zip(CONVERSATION, VECTORS["conversation"], strict=True):
        asked, _ = frame_of(bytes.fromhex(turn["request"]))
        assert {name: value for name, value in asked.items() if name != "id"} == fields


def test_every_header_fits_its_schema() -> None:
    found = schemas()
    for op, response in headers("response"):
        kind = "error" if "error" in response else op
        Draft202012Validator(found[f"{kind}.response"]).validate(response)
    accepted = refused = 0
    for op, request in headers("request"):
        if f"{op}.request" not in found:
            continue
        fits = Draft202012Validator(found[f"{op}.request"]).is_valid(request)
        try:
            decode_request(json.dumps(request).encode())
        except RefusedRequest:
            refused += 1
            # That "next" goes with a cursor is said on the page.
            assert not fits or request.get("offset") == "next"
        else:
            accepted += 1
            assert fits
    assert accepted > 15
    assert refused == 3


def test_the_server_says_what_the_vectors_say(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data") as world:
            load_stream(world, BATCHES)
            peer = RawPeer(world.port)
            for turn in VECTORS["conversation"]:
                answer = await exchange(peer, bytes.fromhex(turn["request"]))
                assert answer.hex() == turn["response"], turn["name"]
            peer.close()

    run(test())


@pytest.mark.parametrize("turn", VECTORS["breaking"], ids=lambda turn: str(turn["name"]))
def test_the_server_closes_where_the_vectors_say(tmp_path: Path, turn: dict[str, str]) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data") as world:
            peer = RawPeer(world.port)
            assert (await exchange(peer, bytes.fromhex(turn["request"]))).hex() == turn["response"]
            assert frame_of(bytes.fromhex(turn["response"]))[0]["id"] is None
            assert await peer.ended()
            peer.close()

    run(test())


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_a_client_hears_what_the_vectors_say(size: int) -> None:
    client = ClientConnection()
    events: list[ClientEvent] = []
    for turn in VECTORS["conversation"]:
        request, response = bytes.fromhex(turn["request"]), bytes.fromhex(turn["response"])
        asked, _ = frame_of(request)
        try:
            decoded = decode_request(json.dumps(asked).encode())
        except RefusedRequest:
            continue  # ours never sends such a thing
        assert not isinstance(decoded, Cancel), "each turn is an answer to a request"
        client.send(decoded)
        for start in range(0, len(response), size):
            events += client.receive_data(response[start : start + size])
        event, (header, body) = events[-1], frame_of(response)
        assert not isinstance(event, ConnectionBroken)
        if isinstance(event, ResponseReceived):
            assert {**event.response.model_dump(exclude_none=True), "crc": header["crc"]} == header
            assert bytes(event.body) == body
        else:
            assert isinstance(event, ResponseFailed)
            assert event.error.err_code == header["error"]["err_code"]
            assert event.error.detail == header["error"]["detail"]


def test_the_bodies_hold_the_records() -> None:
    assert records_in(BATCHES) == VECTORS["records"]
    assert [record["offset"] for record in VECTORS["records"]] == list(range(7))
    whole = 0
    for turn in VECTORS["conversation"]:
        header, body = frame_of(bytes.fromhex(turn["response"]))
        if body:
            whole += len(list(iter_frames(body)))
            first, end = header["start_offset"], header["next_offset"]
            assert records_in([body]) == VECTORS["records"][first:end]
    assert whole >= 7


def test_frames_are_cut_as_the_page_says() -> None:
    reader = FrameReader(1 << 16, 1 << 20)
    everything = b"".join(bytes.fromhex(turn["response"]) for turn in VECTORS["conversation"])
    events = reader.feed(everything)
    assert [type(event) for event in events] == [HeadReceived, BodyReceived] * len(VECTORS["conversation"])
