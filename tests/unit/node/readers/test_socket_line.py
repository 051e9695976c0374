"""The socket under a reader's connection: where its peer is, and what it has taken."""

import asyncio
import socket

import pytest

from envelope.limits import KIB
from jetstream.node.readers.line import SocketLine
from tests.support.sockets import run, until


@pytest.mark.parametrize(("source", "is_local"), [("127.0.0.1", True), ("127.0.0.2", False)])
def test_a_peer_is_on_this_machine_if_it_comes_from_the_address_it_has_come_to(
    source: str, *, is_local: bool
) -> None:
    async def test() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            address = listener.getsockname()
            with socket.create_connection(address, timeout=10, source_address=(source, 0)):
                line = SocketLine(listener.accept()[0], source, asyncio.get_running_loop())
                assert line.is_local == is_local
                line.close()

    run(test())


def test_a_peer_that_is_gone_is_nowhere() -> None:
    async def test() -> None:
        never_connected = socket.socket()
        line = SocketLine(never_connected, "nobody", asyncio.get_running_loop())
        assert not line.is_local
        line.close()

    run(test())


def send_for_ever(line: SocketLine) -> None:
    while True:
        line.send(memoryview(bytes(64 * KIB)), more=False)


def test_what_waits_in_the_kernel_is_sent_but_not_taken() -> None:
    async def test() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * KIB)
            with socket.create_connection(listener.getsockname(), timeout=10) as peer:
                server = listener.accept()[0]
                server.setblocking(False)
                line = SocketLine(server, "a peer", asyncio.get_running_loop())
                peer.setblocking(False)
                sender = SocketLine(peer, "the server", asyncio.get_running_loop())
                sender.keep(128 * KIB)
                with pytest.raises(BlockingIOError):
                    send_for_ever(sender)
                assert 0 <= sender.taken < 64 * KIB < sender.sent
                asyncio.get_running_loop().add_reader(server, line.receive, 64 * KIB)
                await until(lambda: sender.taken == sender.sent)
                asyncio.get_running_loop().remove_reader(server)
                line.close()

    run(test())
