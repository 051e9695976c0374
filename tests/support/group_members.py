"""Members of a metadata group in the test's own process, with real files and connections."""

import asyncio
import socket
from pathlib import Path
from typing import Final

from pydantic import SecretStr

from envelope.types import NodeId
from jetstream.log.disk.os_disk import OsDisk
from metadata.node.catalogue.group import MetadataQuorum
from metadata.node.peers.dialling import Address, PeerIdentity
from metadata.node.storage.file_storage import FileStorage
from tests.support.metadata_members import FAST, listening

TOKEN: Final = "s"


class Member:
    """One member with its catalogue; its address and files stay when it is stopped."""

    def __init__(self, name: str, root: Path) -> None:
        self.node_id = NodeId(name)
        self._root = root / name
        found = listening(Address("127.0.0.1", 0))
        self.address = Address(*found.getsockname())
        found.close()
        self.found: MetadataQuorum | None = None
        self._socket: socket.socket | None = None
        self.task: asyncio.Task[None] | None = None

    @property
    def group(self) -> MetadataQuorum:
        assert self.found is not None, f"{self.node_id} does not run"
        return self.found

    def start(self, voters: dict[NodeId, Address], token: str = TOKEN, snapshot_bytes: int = 1 << 30) -> None:
        identity = PeerIdentity("test", self.node_id, SecretStr(token))
        if self.node_id in voters:
            storage = FileStorage.open(OsDisk(self._root), "metadata")
            self.found = MetadataQuorum.voting(identity, voters, storage, FAST, snapshot_bytes)
        else:
            self.found = MetadataQuorum.observing(identity, voters, FAST)
        self._socket = listening(self.address)
        self.task = asyncio.create_task(self.found.run(self._socket))

    async def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task])
        if self._socket is not None:
            self._socket.close()  # the task may have ended before it began
        self.task = self.found = self._socket = None
