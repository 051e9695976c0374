"""Backups of clusters in this process, and nodes that begin on what was restored from them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import jetstream
from jetstream.client.backup.backup import Backup, BackupMade
from jetstream.client.connection import JetstreamClient
from jetstream.client.read.records import Record
from jetstream.node.node import Node
from jetstream.node.restore.restored_node import RestoredNode, restore_node
from jetstream.tier.backups.backup_store import BackupStore
from jetstream.tier.object_store import ObjectStore
from tests.support.nodes import nats_and_node


def store_at(place: Path | str) -> BackupStore:
    return BackupStore(ObjectStore.at(str(place)))


async def backed_up(client: JetstreamClient, place: Path | str) -> BackupMade:
    return await Backup(client, store_at(place), "test").run()


async def restored(
    backups: Path | str, data: Path, name: str | None = None, node_id: str | None = None
) -> RestoredNode:
    """Restore a backup, the newest unless one is named."""
    store = store_at(backups)
    return await asyncio.to_thread(restore_node, store, store.manifest(name), data, node_id)


@asynccontextmanager
async def node_of_backup(
    backups: Path | str, directory: Path, name: str | None = None
) -> AsyncIterator[tuple[JetstreamClient, Node]]:
    """Restore a backup into ``directory``, and run a node on it with a client."""
    await restored(backups, directory / "data", name)
    async with nats_and_node(directory) as (url, node), jetstream.connect(url) as client:
        yield client, node


async def stored(client: JetstreamClient, stream: str) -> list[Record]:
    """Every committed record of a stream, with all that a reader is told of it."""
    return [record async for record in client.read(stream)]
