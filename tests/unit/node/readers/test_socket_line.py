"""The socket under a reader's connection: where its peer is."""

import asyncio
import socket

import pytest

from jetstream.node.readers.line import SocketLine
from tests.support.sockets import run


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
