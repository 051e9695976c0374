"""The token of the socket: who has it is let in, everybody else is told once and closed."""

import logging
from pathlib import Path

import pytest
from pydantic import SecretStr

from envelope.errors import JetstreamError, Unauthorized
from envelope.limits import FRAME_HEADER_BYTES_MAX
from jetstream.client.nodes.node_links import NodeLinks
from jetstream.client.nodes.socket_access import FixedAddresses, SocketAccess, socket_access
from jetstream.client.read.read_range import ReadRange
from jetstream.client.read.reader import BatchReader, ReadSettings
from jetstream.node.readers.server import SocketSettings
from jetstream.protocol.frames import encode_head
from tests.support.sockets import WAIT_SECONDS, RawPeer, World, asked, run, serving, until

TOKEN = "swordfish-and-chips"
SETTINGS = SocketSettings(require="token", token=SecretStr(TOKEN))
WRONG = "wrong-and-never-to-be-repeated"


async def values(world: World, access: SocketAccess) -> list[bytes | None]:
    batches = world.batches(ReadRange("s"), world.links(access=access))
    return [value for batch in [part async for part in batches] for value in batch["value"].to_pylist()]


def test_who_has_the_token_reads_and_goes_on_reading(tmp_path: Path, loop: str) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data", SETTINGS) as world:
            stream = world.stream("s")
            stream.add([b"a"])
            access = socket_access(TOKEN, None)
            assert await values(world, access) == [b"a"]
            follower = world.records(ReadRange("s", start=1, follow=True), world.links(access=access))
            async with asked(follower) as waiting:
                await until(lambda: world.server.parked == 1)
                await world.server.stop()
                await world.server.start("127.0.0.1", world.port)
                stream.add([b"b"])
                assert (await waiting()).value == b"b"
            assert world.server.counters.connections_unauthorized == 0

    run(test(), loop)


@pytest.mark.parametrize("token", [None, WRONG, TOKEN + "!", "x" * (FRAME_HEADER_BYTES_MAX - 200)])
def test_who_has_not_is_refused_once_and_at_once(
    tmp_path: Path, loop: str, token: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data", SETTINGS) as world:
            world.stream("s").add([b"a"])
            with pytest.raises(Unauthorized) as caught:
                await values(world, socket_access(token, None))
            counters = world.server.counters
            assert (counters.connections_opened, counters.connections_unauthorized) == (1, 1)
            assert (counters.requests, counters.protocol_errors) == (0, 0)
            await until(lambda: world.server.connections == 0)
            shown = f"{caught.value!r} {caught.value} {caught.value.detail} {caplog.text}"
            assert TOKEN not in shown
            assert token is None or token not in shown

    with caplog.at_level(logging.DEBUG):
        run(test(), loop)
    assert sum("Unauthorized" in message for message in caplog.messages) == 1


def test_a_token_that_fits_no_header_is_the_callers_fault(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data", SETTINGS) as world:
            with pytest.raises(JetstreamError, match="the limit is") as caught:
                await values(world, socket_access("x" * FRAME_HEADER_BYTES_MAX, None))
            assert caught.value.err_code == "bad_request"

    run(test())


def test_what_is_asked_behind_a_wrong_hello_is_not_answered(tmp_path: Path, loop: str) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data", SETTINGS) as world:
            world.stream("s").add([b"a"])
            peer = RawPeer(world.port)
            await peer.send(
                encode_head(b'{"op":"hello","id":0,"protocol":1,"token":"%s"}' % WRONG.encode())
                + encode_head(b'{"op":"hello","id":1,"protocol":1,"token":"%s"}' % TOKEN.encode())
                + encode_head(b'{"op":"fetch","id":2,"stream":"s","offset":0}')
            )
            header, body = await peer.response()
            assert (header["id"], header["error"]["err_code"], body) == (None, "unauthorized", b"")
            assert header["error"]["retriable"] is False
            assert await peer.receive(1) == b""
            assert world.server.counters.requests == 0
            peer.close()

    run(test(), loop)


def test_no_other_node_is_asked_with_a_token_that_one_has_refused(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            serving(tmp_path / "first", SETTINGS) as first,
            serving(tmp_path / "second", SETTINGS) as second,
        ):
            book = FixedAddresses([("127.0.0.1", world.port) for world in (first, second)])
            links = NodeLinks(book, WAIT_SECONDS, socket_access(WRONG, None))
            with pytest.raises(Unauthorized):
                await anext(BatchReader(links, ReadRange("s"), ReadSettings()))
            assert first.server.counters.connections_opened == 1
            assert second.server.counters.connections_opened == 0
            links.close()

    run(test())


def test_a_reader_is_told_when_the_token_was_changed(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data", SETTINGS) as world:
            world.stream("s").add([b"a"])
            links = world.links(access=socket_access(TOKEN, None))
            follower = world.records(ReadRange("s", follow=True), links)
            assert (await anext(follower)).offset == 0
            async with asked(follower) as waiting:
                await until(lambda: world.server.parked == 1)
                await world.server.stop()
                async with serving(
                    tmp_path / "other", SocketSettings(require="token", token=SecretStr("new"))
                ) as other:
                    await other.server.stop()
                    await other.server.start("127.0.0.1", world.port)
                    with pytest.raises(Unauthorized):
                        await waiting()

    run(test())
