"""Peers that are slow, gone, greedy or hostile: they meet limits and typed errors, and disturb nobody else.

A real node on a real nats-server; meanwhile a bystander publishes and reads, and its rounds are counted.
"""

import asyncio
import json
from pathlib import Path
from typing import Any, Final

import pytest

from envelope.limits import FRAME_HEADER_BYTES_MAX, KIB, MIB, REQUESTS_IN_FLIGHT_MAX
from jetstream.protocol.frames import PREFIX, encode_head
from jetstream.protocol.responses import DESCRIPTION_CHARS_MAX
from tests.support.nodes import run
from tests.support.scene import a_scene, close_all, large_records, open_files
from tests.support.sockets import RawPeer
from tests.support.tcp_proxy import Silence, proxied

HELLO: Final = encode_head(b'{"op":"hello","id":0,"protocol":1}')


# --- slow and gone ----------------------------------------------------------------------------------------


def test_peers_that_drip_are_cut_off_in_time(tmp_path: Path) -> None:
    """A byte now and then prolongs nothing: neither of a hello nor of the largest header that is allowed."""

    async def test() -> None:
        async with a_scene(tmp_path) as scene:
            connections = int(await scene.metric("jetstream_socket_connections"))
            silent = [RawPeer(scene.node.socket_port) for _ in range(50)]
            greeting = [RawPeer(scene.node.socket_port) for _ in range(50)]
            asking = [await scene.peer() for _ in range(50)]
            for peer in asking:
                await peer.send(PREFIX.pack(FRAME_HEADER_BYTES_MAX, 0))
            for place in range(20):
                for peer in greeting:
                    await peer.send(HELLO[place : place + 1])
                for peer in asking:
                    await peer.send(b"{")
                await scene.bystander.gets_on(1)
            await scene.until("jetstream_socket_connections", connections + 150, connections + 150)
            scene.clock.put_forward(11)
            for peer in (*silent, *greeting):
                assert await peer.ended()
            for peer in asking:
                await peer.send(b"{")
            await scene.until("jetstream_socket_connections", connections + 50, connections + 50)
            scene.clock.put_forward(20)
            for peer in asking:
                assert await peer.ended()
            await scene.bystander.gets_on()
            close_all((*silent, *greeting, *asking))

    run(test())


@pytest.mark.slow(
    "tests/integration/test_socket_peers.py",
    "tests/unit/fetch/test_parked.py",
)
def test_peers_that_are_gone_without_a_word_are_forgotten(tmp_path: Path) -> None:
    """Behind a line that has gone dead: one was idle, one waited for records, one had half of a body."""

    async def test() -> None:
        async with a_scene(tmp_path) as scene:
            await large_records(scene.js, 60)
            connections = int(await scene.metric("jetstream_socket_connections"))
            greeting = 12 + 143  # what the node says to a hello
            faults = Silence(greeting), Silence(greeting), Silence(100_000)
            async with proxied(scene.node.socket_port, *faults) as proxy:
                idle, waiting, reading = [await scene.peer(4096, proxy.port) for _ in faults]
                await waiting.request(op="fetch", id=1, stream="large", offset=60, max_wait_ms=1_000)
                await reading.request(op="fetch", id=1, stream="large", offset=0, max_bytes=64 * MIB)
                await proxy.passed(2, 100_000)
                await scene.js.streams.truncate("large", before=60)
                assert any(target.endswith("(deleted)") for target in open_files(tmp_path))
                await proxy.passed(1, greeting + 1)  # it was answered, to nobody
                for seconds in (121, 601):
                    scene.clock.put_forward(seconds)
                    await scene.bystander.gets_on()
                await scene.until("jetstream_socket_connections", connections, connections)
                assert not any(target.endswith("(deleted)") for target in open_files(tmp_path))
                close_all((idle, waiting, reading))

    run(test())


# --- nonsense ---------------------------------------------------------------------------------------------


async def answered(peer: RawPeer, header: bytes) -> str | None:
    """Send one header; return the error's code, None if it was answered well."""
    await peer.send(encode_head(header))
    response, _ = await peer.response()
    error: dict[str, Any] = response.get("error", {})
    code: str | None = error.get("err_code")
    assert len(json.dumps(response)) < DESCRIPTION_CHARS_MAX + KIB, (
        "an error repeats little of what it is about"
    )
    return code


def test_a_version_that_is_not_spoken_is_refused_and_another_may_be_tried(tmp_path: Path) -> None:
    versions = {
        "unsupported": (b"0", b"2", b"9223372036854775807"),
        "bad_request": (b"9223372036854775808", b"-1", b"1.0", b'"1"', b"null", b"[1]", b"true", b"{}"),
    }

    async def test() -> None:
        async with a_scene(tmp_path) as scene:
            peer = RawPeer(scene.node.socket_port)
            for code, refused in versions.items():
                for version in refused:
                    assert await answered(peer, b'{"op":"hello","id":0,"protocol":%b}' % version) == code
            assert await answered(peer, b'{"op":"hello","id":0,"protocol":1}') is None
            await scene.bystander.gets_on()
            peer.close()

    run(test())


def test_nonsense_in_sound_frames_is_refused_by_name_and_the_connection_lives(tmp_path: Path) -> None:
    fetch = b'{"op":"fetch","id":1,"stream":"bystander","offset":'
    nonsense = [
        (b'{"op":"commit","id":1}', "unsupported"),
        (b'{"op":"","id":1}', "unsupported"),
        (b'{"id":1}', "unsupported"),
        (b'{"op":null,"id":1}', "unsupported"),
        (b'{"op":["fetch"],"id":1}', "unsupported"),
        (b'{"op":"FETCH","id":1}', "unsupported"),
        (b'{"op":"%b","id":1}' % (b"x" * 65_000), "unsupported"),
        (b'{"op":"hello","id":1,"protocol":1}', "bad_request"),
        (fetch + b'0,"%b":1}' % (b"x" * 65_000), "unsupported"),
        (fetch + b"-1}", "bad_request"),
        (fetch + b"9223372036854775808}", "bad_request"),
        (fetch + b"1e3}", "bad_request"),
        (fetch + b'"next"}', "bad_request"),
        (fetch + b'"next","cursor":7}', "bad_request"),
        (fetch + b"9223372036854775807}", "offset_out_of_range"),
        (fetch + b'0,"max_bytes":0}', "bad_request"),
        (fetch + b'0,"max_bytes":67108865}', "bad_request"),
        (fetch + b'0,"max_wait_ms":60001}', "bad_request"),
        (fetch + b'0,"incarnation":"%b"}' % (b"x" * 1025), "bad_request"),
        (fetch + b'0,"incarnation":"%b"}' % (b"x" * 1024), "stream_recreated"),
        (b'{"op":"fetch","id":1,"stream":"../../etc/passwd","offset":0}', "stream_not_found"),
        (b'{"op":"fetch","id":1,"stream":"%b","offset":0}' % (b"x" * 1024), "stream_not_found"),
        (b'{"op":"fetch","id":1,"stream":"\\u0000","offset":0}', "stream_not_found"),
        (b'{"op":"list_offsets","id":1,"stream":"bystander","at":"later"}', "bad_request"),
        (b'{"op":"metadata","id":1,"streams":[%b]}' % b",".join([b'"x"'] * 257), "bad_request"),
        (b'{"op":"metadata","id":1,"after":"%b"}' % (b"x" * 60_000), "bad_request"),
    ]

    async def test() -> None:
        async with a_scene(tmp_path) as scene:
            peer = await scene.peer()
            largest = b'{"op":"metadata","id":1}'.ljust(FRAME_HEADER_BYTES_MAX)
            for header, code in nonsense:
                assert await answered(peer, header) == code, header[:100]
                assert await answered(peer, largest) is None
            await scene.bystander.gets_on()
            assert await scene.metric("jetstream_socket_protocol_errors_total") == 0
            peer.close()

    run(test())


# --- greed ------------------------------------------------------------------------------------------------


@pytest.mark.slow(
    "tests/integration/test_socket_peers.py",
    "tests/unit/fetch/test_parked.py",
)
def test_ten_thousand_requests_in_flight_on_one_connection_are_refused_beyond_its_limit(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with a_scene(tmp_path) as scene:
            await scene.js.streams.create("s", "s")
            peer = await scene.peer()
            heads = [
                encode_head(b'{"op":"fetch","id":%d,"stream":"s","offset":0,"max_wait_ms":60000}' % number)
                for number in range(1, 10_001)
            ]
            refused: list[int] = []

            async def take_refusals() -> None:
                while len(refused) < 10_000 - REQUESTS_IN_FLIGHT_MAX:
                    response, _ = await peer.response()
                    assert response["error"]["err_code"] == "overloaded", response
                    assert response["error"]["retriable"]
                    refused.append(response["id"])

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(take_refusals())
                await peer.send(b"".join(heads))
            assert refused == list(range(REQUESTS_IN_FLIGHT_MAX + 1, 10_001))
            await scene.bystander.gets_on()
            await scene.js.publish("s", b"for all")
            answers = [await peer.response() for _ in range(REQUESTS_IN_FLIGHT_MAX)]
            assert {header["id"] for header, _ in answers} == set(range(1, REQUESTS_IN_FLIGHT_MAX + 1))
            assert all(header["records"] == 1 and b"for all" in body for header, body in answers)
            assert await answered(peer, b'{"op":"metadata","id":1}') is None
            peer.close()

    run(test())


@pytest.mark.slow(
    "tests/integration/test_socket_peers.py",
    "tests/unit/fetch/test_parked.py",
)
def test_ten_thousand_requests_in_flight_over_many_connections_are_all_answered(tmp_path: Path) -> None:
    async def test() -> None:
        async with a_scene(tmp_path) as scene:
            await scene.js.streams.create("s", "s")
            peers = [await scene.peer() for _ in range(50)]
            for peer in peers:
                await peer.send(
                    b"".join(
                        encode_head(
                            b'{"op":"fetch","id":%d,"stream":"s","offset":0,"max_wait_ms":60000}' % number
                        )
                        for number in range(200)
                    )
                )
            await scene.until("jetstream_socket_parked_fetches", 10_000, 10_001)
            await scene.bystander.gets_on()
            await scene.js.publish("s", b"for all")
            for peer in peers:
                answers = [await peer.response() for _ in range(200)]
                assert {header["id"] for header, _ in answers} == set(range(200))
                assert all(header["records"] == 1 and b"for all" in body for header, body in answers)
            await scene.bystander.gets_on()
            close_all(peers)

    run(test())


def test_waits_of_no_time_at_all_are_answered(tmp_path: Path) -> None:
    """A thousand fetches that wait for a millisecond each, one after the other on twenty cursors."""

    async def test() -> None:
        async with a_scene(tmp_path) as scene:
            await scene.js.streams.create("s", "s")
            peers = [await scene.peer() for _ in range(20)]
            numbers = range(1, 51)
            for number in numbers:
                for peer in peers:
                    await peer.request(op="fetch", id=number, stream="s", offset=0, cursor=1, max_wait_ms=1)
            for peer in peers:
                answers = [await peer.response() for _ in numbers]
                assert [header["id"] for header, _ in answers] == list(numbers)
                assert {header["records"] for header, _ in answers} == {0}
            close_all(peers)

    run(test())


# --- filters ----------------------------------------------------------------------------------------------


def test_a_hostile_pattern_is_refused_or_matches_what_nats_would_match(tmp_path: Path) -> None:
    """Patterns are no regular expressions, and their length is bounded."""
    deep = "h" + ".t" * 2000
    subjects = ["h.(a+)+$", "h.[x]", "h.a*b", "h.\\d", "h.a|b", "h.^a$", deep]
    matching = {
        "h.(a+)+$": [0],
        "h.[x]": [1],
        "h.[a-z]": [],
        "h.a*b": [2],
        "h.*": [0, 1, 2, 3, 4, 5],
        "h.\\d": [3],
        "h.a|b": [4],
        "h.^a$": [5],
        "h.(a+)+": [],
        "*" + ".*" * 2000: [6],
        "*" + ".*" * 2001: [],
        "h" + ".*" * 1999 + ".>": [6],
        "*.*." * 2 + ">": [6],
        "*" + ".*" * 2000 + ".>": [],
        deep: [6],
        "x" * 4096: [],
    }
    refused = [
        "",
        ".",
        "h.",
        ".h",
        "h..a",
        ">.h",
        "h.>.a",
        "h. a",
        "h.\x00",
        "h.\n",
        "." * 4096,
        "x" * 4097,
        "é" * 2049,
    ]

    async def test() -> None:
        async with a_scene(tmp_path) as scene:
            await scene.js.streams.create("h", "h.>")
            for subject in subjects:
                await scene.js.publish(subject, b"v")
            peer = await scene.peer()
            for pattern, wanted in matching.items():
                got = [record.offset async for record in scene.js.read("h", subject=pattern)]
                assert got == wanted, pattern
            for pattern in refused:
                fields = {"op": "fetch", "id": 1, "stream": "h", "offset": 0, "subject": pattern}
                assert await answered(peer, json.dumps(fields).encode()) == "bad_request", pattern
            await scene.bystander.gets_on()
            peer.close()

    run(test())


def test_a_pattern_that_is_no_unicode_is_refused_or_breaks_its_own_connection(tmp_path: Path) -> None:
    fetch = b'{"op":"fetch","id":1,"stream":"bystander","offset":0,"subject":"%b"}'

    async def test() -> None:
        async with a_scene(tmp_path) as scene:
            for text in (
                b"\xff",
                b"\xc0\xaf",
                b"\xed\xa0\x80",
                b"a.\xf8\x88\x80\x80\x80",
                b"\\ud800",
                b"\\udfff.a",
            ):
                peer = await scene.peer()
                assert await answered(peer, fetch % text) == "protocol_error", text
                assert await peer.ended()
                peer.close()
            await scene.bystander.gets_on()

    run(test())


def test_costly_patterns_over_many_subjects_hold_up_nobody(tmp_path: Path) -> None:
    """Five hundred subjects of six hundred tokens each, ten peers with patterns as long."""

    async def test() -> None:
        async with a_scene(tmp_path) as scene:
            await scene.js.streams.create("h", "h.>")
            tokens = ".t" * 600
            await scene.js.publish_all((f"h{tokens}.{number}", b"") for number in range(500))
            peers = [await scene.peer() for _ in range(10)]
            wanted = {"op": "fetch", "stream": "h", "offset": 0, "max_bytes": 64 * MIB}
            patterns = ["*" + ".*" * 600 + f".{number}" for number in range(len(peers))]
            for peer, pattern in zip(peers, patterns, strict=True):
                for request in (1, 2):
                    await peer.request(**wanted, id=request, subject=pattern)
            await scene.bystander.gets_on(20)
            for peer, pattern in zip(peers, patterns, strict=True):
                for _ in range(2):
                    header, _ = await peer.response()
                    offset = 0
                    while not header["records"]:  # it has waited for its turn for long, or read a part
                        offset = header["next_offset"] or offset
                        assert offset < 500, header
                        header = await peer.ask(
                            **{**wanted, "offset": offset}, id=header["id"], subject=pattern
                        )
                    assert header["records"] == 1
            close_all(peers)

    run(test())
