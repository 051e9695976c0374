"""The hello of clients from before there were tickets: nodes still take it, and clients still send it."""

import asyncio
from pathlib import Path

import pytest
from pydantic import SecretStr

import jetstream
from envelope.errors import JetstreamError
from jetstream.node.readers.server import SocketSettings
from tests.support.nodes import nats_and_node
from tests.support.sockets import RawPeer, run, serving

TOKEN = "sesame"
HELLO = bytes.fromhex("52" + 11 * "00") + (
    b'{"id":0,"op":"hello","protocol":1,"client":"jetstream-python","client_version":""}'
)
HELLO_WITH_TOKEN = bytes.fromhex("63" + 11 * "00") + (
    b'{"id":0,"op":"hello","protocol":1,"client":"jetstream-python","client_version":"","token":"sesame"}'
)
"""As the client library of commit 52cd2ba sent them."""


@pytest.mark.parametrize(
    ("settings", "hello", "refusal"),
    [
        (SocketSettings(), HELLO, None),
        (SocketSettings(), HELLO_WITH_TOKEN, None),
        (SocketSettings(require="token", token=SecretStr(TOKEN)), HELLO, "this node needs a token"),
        (SocketSettings(require="token", token=SecretStr(TOKEN)), HELLO_WITH_TOKEN, None),
        (SocketSettings(require="ticket"), HELLO, "this node needs a ticket"),
        (SocketSettings(require="ticket"), HELLO_WITH_TOKEN, "the token is not right"),
        (SocketSettings(require="ticket", token=SecretStr(TOKEN)), HELLO, "this node needs a ticket"),
        (SocketSettings(require="ticket", token=SecretStr(TOKEN)), HELLO_WITH_TOKEN, None),
    ],
)
def test_a_node_serves_an_older_client_or_tells_it_that_it_is_unauthorized(
    tmp_path: Path, settings: SocketSettings, hello: bytes, refusal: str | None
) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, settings) as world:
            peer = RawPeer(world.port)
            await peer.send(hello)
            answer, _ = await peer.response()
            if refusal is None:
                assert (answer["id"], answer["protocol"], answer["node"]) == (0, 1, "n1")
                assert "error" not in await peer.ask(op="metadata", id=1)
            else:
                assert answer["error"]["err_code"] == "unauthorized"
                assert answer["error"]["description"].startswith(refusal)
                assert await peer.ended()
            peer.close()

    run(scenario())


@pytest.mark.parametrize(("token", "hello"), [(None, HELLO), (TOKEN, HELLO_WITH_TOKEN)])
def test_a_client_that_no_node_has_told_of_tickets_says_hello_as_before(
    token: str | None, hello: bytes, tmp_path: Path
) -> None:
    """Also one that could ask for a ticket over NATS: an older node refuses the field."""
    heard: list[bytes] = []

    async def scenario() -> None:
        async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heard.append(await reader.read(4096))
            writer.close()

        async with (
            nats_and_node(tmp_path) as (url, _),
            await asyncio.start_server(hear, "127.0.0.1", 0) as server,
        ):
            address = "{}:{}".format(*server.sockets[0].getsockname())
            for servers in ((), (url,)):
                async with jetstream.connect(*servers, socket=address, socket_token=token) as client:
                    with pytest.raises(JetstreamError):
                        await client.stream_names()
                    assert set(heard) == {hello}
                    heard.clear()

    run(scenario())
