"""Who trusts whom on a socket with TLS, and what is said to who is not let in."""

import asyncio
import logging
import os
import ssl
from pathlib import Path

import pytest

from envelope.errors import ConnectionLost, InvalidConfig, JetstreamError, TlsFailed
from jetstream.client.nodes.node_links import NodeLinks
from jetstream.client.nodes.socket_access import FixedAddresses, SocketAccess, socket_access
from jetstream.client.read.read_range import ReadRange
from jetstream.client.read.reader import BatchReader, ReadSettings
from jetstream.node.readers.server import SocketSettings
from jetstream.node.settings.credentials import server_context
from jetstream.node.settings.node_config import ServerTlsConfig
from tests.support.nats_identities import TlsFiles
from tests.support.sockets import WAIT_SECONDS, RawPeer, World, run, serving, until
from tests.support.tls_sockets import context, settings, tls_peer

HELLO = b'\x22\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00{"op":"hello","id":0,"protocol":1}'


async def values(world: World, access: SocketAccess) -> list[bytes | None]:
    batches = world.batches(ReadRange("s"), world.links(access=access))
    return [value for batch in [part async for part in batches] for value in batch["value"].to_pylist()]


async def refused(world: World, access: SocketAccess) -> JetstreamError:
    """Read, expecting a refusal: an error that is met with another attempt takes longer than this waits."""
    async with asyncio.timeout(WAIT_SECONDS):
        with pytest.raises(JetstreamError) as caught:
            await values(world, access)
    return caught.value


def broken(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if message.startswith("connection broken")]


def test_a_server_of_another_authority_is_not_trusted(
    tmp_path: Path, tls_files: TlsFiles, tls_strangers: TlsFiles, loop: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data", settings(tls_files)) as world:
            world.stream("s").add([b"a"])
            error = await refused(world, socket_access(None, tls_strangers.ca))
            assert isinstance(error, TlsFailed)
            assert "certificate is not trusted: unable to get local issuer" in str(error)
            await until(lambda: world.server.connections == 0)
            assert world.server.counters.protocol_errors == world.server.counters.connections_opened == 1

    with caplog.at_level(logging.INFO, logger="jetstream"):
        run(test(), loop)
    (message,) = broken(caplog)
    assert "127.0.0.1:" in message
    assert "the peer has left the handshake" in message


def test_a_server_under_another_name_is_not_trusted(tmp_path: Path, tls_files: TlsFiles) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data", settings(tls_files)) as world:
            world.stream("s").add([b"a"])
            book = FixedAddresses([("127.1", world.port)])  # another way to write the same address
            links = NodeLinks(book, WAIT_SECONDS, socket_access(None, tls_files.ca))
            with pytest.raises(TlsFailed, match=r"not valid for '127\.1'"):
                await anext(BatchReader(links, ReadRange("s"), ReadSettings()))
            links.close()

    run(test())


def test_a_client_certificate_is_asked_for_and_accepted(
    tmp_path: Path, tls_files: TlsFiles, loop: str
) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data", settings(tls_files, client_ca=tls_files.ca)) as world:
            world.stream("s").add([b"a"])
            assert await values(world, SocketAccess(tls=context(tls_files, identity=tls_files))) == [b"a"]

    run(test(), loop)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("known", [False, True], ids=["none", "of another authority"])
def test_a_client_without_the_right_certificate_is_refused(
    tmp_path: Path,
    tls_files: TlsFiles,
    tls_strangers: TlsFiles,
    loop: str,
    version: ssl.TLSVersion,
    known: bool,
) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data", settings(tls_files, client_ca=tls_files.ca)) as world:
            world.stream("s").add([b"a"])
            client = context(tls_files, identity=tls_strangers if known else None)
            client.maximum_version = version
            error = await refused(world, SocketAccess(tls=client))
            assert isinstance(error, TlsFailed), error
            assert world.server.counters.requests == 0
            await until(lambda: world.server.connections == 0)

    run(test(), loop)


def test_a_plain_client_on_a_tls_port_is_told_at_once(
    tmp_path: Path, tls_files: TlsFiles, loop: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data", settings(tls_files)) as world:
            world.stream("s").add([b"a"])
            error = await refused(world, SocketAccess())
            assert isinstance(error, TlsFailed)
            assert "this port speaks TLS" in str(error)
            peer = RawPeer(world.port)
            await peer.send(HELLO + bytes(1000))
            header, _ = await peer.response()
            assert (header["id"], header["error"]["err_code"]) == (None, "tls_failed")
            assert await peer.receive(1) == b""
            peer.close()
            assert world.server.counters.connections_opened == 2

    with caplog.at_level(logging.INFO, logger="jetstream"):
        run(test(), loop)
    assert len(broken(caplog)) == 2


def test_a_tls_client_on_a_plain_port_is_told_at_once(
    tmp_path: Path, tls_files: TlsFiles, loop: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data") as world:
            world.stream("s").add([b"a"])
            error = await refused(world, SocketAccess(tls=context(tls_files)))
            assert isinstance(error, TlsFailed)
            assert "does not speak TLS" in str(error)
            assert world.server.counters.connections_opened == 1

    with caplog.at_level(logging.INFO, logger="jetstream"):
        run(test(), loop)
    (message,) = broken(caplog)
    assert "the peer speaks TLS" in message


def test_garbage_on_a_tls_port_harms_nobody_else(tmp_path: Path, tls_files: TlsFiles, loop: str) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data", settings(tls_files)) as world:
            world.stream("s").add([b"a"] * 100)
            access = SocketAccess(tls=context(tls_files))
            for number in range(60):
                peer = await tls_peer(world, tls_files) if number % 3 == 2 else RawPeer(world.port)
                garbage = os.urandom(300)
                await RawPeer.send(peer, b"\x16\x03\x01\x00\x80" + garbage if number % 3 == 1 else garbage)
                if number % 2:
                    peer.socket.shutdown(1)
                peer.close()
            assert len(await values(world, access)) == 100
            await until(lambda: world.server.connections == 1)

    run(test(), loop)


def test_too_many_connections_on_a_tls_port_are_closed(tmp_path: Path, tls_files: TlsFiles) -> None:
    async def test() -> None:
        bounded = SocketSettings(tls=settings(tls_files).tls, connections_max=1)
        async with serving(tmp_path / "data", bounded) as world:
            first = await tls_peer(world, tls_files)
            second = RawPeer(world.port)
            assert await second.ended()
            links = world.links(access=SocketAccess(tls=context(tls_files)))
            with pytest.raises(ConnectionLost):
                await links.link()
            first.close()
            second.close()

    run(test())


# --- tls_files ----------------------------------------------------------------------------------------------


def test_files_that_are_not_what_they_should_be_are_refused_by_name(
    tmp_path: Path, tls_files: TlsFiles
) -> None:
    absent = tmp_path / "absent.pem"
    for config in (
        ServerTlsConfig(certificate=absent, key=tls_files.server_key),
        ServerTlsConfig(certificate=tls_files.server_certificate, key=tls_files.client_key),
        ServerTlsConfig(
            certificate=tls_files.server_certificate, key=tls_files.server_key, client_ca=tls_files.server_key
        ),
    ):
        with pytest.raises(InvalidConfig, match=r"socket\.tls.*\.pem"):
            server_context(config, "socket.tls")
    for authorities in (absent, tls_files.server_key):
        with pytest.raises(InvalidConfig, match=authorities.name):
            socket_access(None, authorities)
