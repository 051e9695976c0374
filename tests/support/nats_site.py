"""A node on a NATS server with users, and parties that connect to it as one of them."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import jetstream
from envelope.errors import StreamOffline
from jetstream import JetstreamClient
from jetstream.node.node import Node
from jetstream.node.settings.node_config import SocketConfig
from tests.support.nats_server import NatsServer
from tests.support.nodes import WAIT_SECONDS, node_config
from tests.support.pauses import pause
from tests.support.sockets import until

NODE = "node"
"""The user of the node itself."""
PASSWORD = "pw"
"""Of every user."""
INBOX = "_INBOX.>"


@dataclass(frozen=True, slots=True)
class Site:
    """A node under its own rights, and how its parties reach it."""

    url: str
    node: Node
    told: list[str]
    """What NATS said to the parties' error callbacks."""

    @asynccontextmanager
    async def party(self, name: str, patience_s: float = 30) -> AsyncIterator[JetstreamClient]:
        """Connect as one of the parties, who waits so long for an answer."""

        async def tell(error: Exception) -> None:
            self.told.append(str(error))

        async with jetstream.connect(
            self.url, user=name, password=PASSWORD, request_timeout=patience_s, error_cb=tell
        ) as client:
            yield client

    async def values(self) -> list[bytes | None]:
        """Read the stream by socket alone: that needs no right of NATS."""
        async with jetstream.connect(socket=f"127.0.0.1:{self.node.socket_port}") as client:
            return [record.value async for record in client.read("orders")]

    async def until_stored(self, *values: bytes) -> None:
        """Wait until these are in the stream; none: there are none."""
        async with asyncio.timeout(WAIT_SECONDS):
            while await self.values() != list(values):
                await pause()

    async def until_created(self) -> None:
        """Wait for the stream that `create_another` creates."""
        await until(self.is_created)

    def is_created(self) -> bool:
        """Return whether there is the stream that `create_another` creates; it may be offline yet."""
        try:
            return self.node.stream("more") is not None
        except StreamOffline:
            return True


def users_config(may_publish: Mapping[str, Sequence[str]]) -> str:
    """Return what lets the node do everything, and each user publish on some subjects and hear its inbox."""
    everything = f'{{ user: {NODE}, password: {PASSWORD}, permissions: {{ publish: ">", subscribe: ">" }} }}'
    limited = (
        f"{{ user: {user}, password: {PASSWORD}, permissions: "
        f'{{ publish: {{ allow: {json.dumps(list(subjects))} }}, subscribe: "{INBOX}" }} }}'
        for user, subjects in may_publish.items()
    )
    return f"authorization {{ users: [ {', '.join((everything, *limited))} ] }}"


@asynccontextmanager
async def site(
    data: Path, server: NatsServer, names_in_subjects: str = "optional", **socket: object
) -> AsyncIterator[Site]:
    """Run a node; ``socket``: settings of its socket."""
    config = node_config(
        data,
        server.url,
        nats={"urls": [server.url], "user": NODE, "password": PASSWORD},
        api={"names_in_subjects": names_in_subjects},
    )
    config = config.model_copy(update={"socket": SocketConfig(**{**config.socket.model_dump(), **socket})})
    async with Node(config) as node:
        yield Site(server.url, node, [])
