"""``jetstream backup`` and ``jetstream restore``: a cluster to a folder or an object store, and back."""

import asyncio
import time
from pathlib import Path
from typing import Annotated, Final

import typer
from pydantic import TypeAdapter, ValidationError

from envelope.errors import DamagedBackup
from jetstream.cli.client_connection import connected
from jetstream.cli.options.nats_options import NatsOptions
from jetstream.cli.options.quantities import size_text
from jetstream.cli.options.socket_options import SocketOptions
from jetstream.cli.output.console import notice, print_json, print_result, print_table, progress
from jetstream.cli.program.help_text import Json
from jetstream.client.backup.backup import Backup, BackupMade
from jetstream.client.nodes.background import beside
from jetstream.node.restore.restored_node import RestoredNode, restore_node
from jetstream.node.runtime.version import VERSION
from jetstream.node.settings.node_config import Name
from jetstream.tier.backups.backup_store import BackupStore
from jetstream.tier.backups.manifest import BackupManifest
from jetstream.tier.object_store import ObjectStore, without_secrets
from metadata.api.responses import utc

BACKUP_EXAMPLES: Final = (
    "jetstream backup /srv/backups",
    "jetstream backup 's3://bucket/backups?region=eu-north-1' --nats nats://nats1:4222 --json",
)
RESTORE_EXAMPLES: Final = (
    "jetstream restore /srv/backups --data /var/lib/jetstream",
    "jetstream restore /srv/backups --list",
)

_NAME: Final = TypeAdapter(Name)
_INTERVAL_S: Final = 10.0
"""Between two lines that say how far it is."""

PlaceArgument = Annotated[
    str, typer.Argument(metavar="URI", help="Of the backups' object store, or a folder.")
]


async def backup(
    nats: NatsOptions, socket: SocketOptions, place: PlaceArgument, as_json: Json = False
) -> None:
    """Back up a running cluster: settings, streams, cursors, groups and the audit, at committed offsets.

    It may be interrupted: what it has stored is found by the next one. A backup exists once this has ended
    with code 0. The next one at the same place reads and writes only what is new.
    """
    store = _store(place)
    async with connected(nats, socket) as client:
        work = Backup(client, store, VERSION)
        async with beside(_progress(work)):
            made = await work.run()
    for name in made.damaged:
        notice(f"not a whole backup, and not used: {name}")
    for name in made.left_out:
        notice(f"stream {name} was deleted meanwhile, and is not part of the backup")
    print_result(_made(made), _made_text(made), as_json)


def restore(
    place: PlaceArgument,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="DIR", help="Data directory to be made: empty, or not there."),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--backup", metavar="NAME", help="Which backup (default: the newest).")
    ] = None,
    node_id: Annotated[
        str | None,
        typer.Option(
            "--node-id", metavar="ID", help="Of the node (default: as a node without node_id calls itself)."
        ),
    ] = None,
    list_them: Annotated[
        bool, typer.Option("--list", help="Say which backups there are, and restore nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make a backup the data directory of the first node of a new cluster, without any node.

    Every byte is checked by its hash. Until this has ended with code 0 no node takes the directory; after an
    error or an interruption the next restore into it begins anew. Each stream has one replica, and no tier.
    """
    store = _store(place)
    if list_them:
        _print_list(store, without_secrets(place), as_json)
        return
    if data is None:
        raise typer.BadParameter("say which directory is to be made", param_hint="--data")
    if node_id is not None:
        try:
            _NAME.validate_python(node_id)
        except ValidationError:
            raise typer.BadParameter(f"{node_id!r} is no id of a node", param_hint="--node-id") from None
    manifest = store.manifest(name)
    with progress("restoring", sum(stream.size for stream in manifest.streams), quiet=as_json) as moved:
        node = restore_node(store, manifest, data, node_id, moved)
    print_result(_restored(node, manifest), _restored_text(node, manifest, data), as_json)


def _store(place: str) -> BackupStore:
    return BackupStore(ObjectStore.at(place if "://" in place else str(Path(place).absolute())))


async def _progress(work: Backup) -> None:
    """Say now and then how far it is, until cancelled."""
    began = time.monotonic()
    while True:
        await asyncio.sleep(_INTERVAL_S)
        reached = work.progress
        rate = size_text(int(reached.read / (time.monotonic() - began)))
        notice(
            f"{reached.streams} of {reached.total} streams, {size_text(reached.read)} read, "
            f"{size_text(reached.written)} of them new, {rate}/s"
        )


def _made(made: BackupMade) -> dict[str, object]:
    return {
        "backup": made.name,
        "streams": len(made.manifest.streams),
        "bytes": sum(stream.size for stream in made.manifest.streams),
        "read_bytes": made.progress.read,
        "written_bytes": made.progress.written,
        "left_out": list(made.left_out),
    }


def _made_text(made: BackupMade) -> str:
    size = size_text(sum(stream.size for stream in made.manifest.streams))
    written = size_text(made.progress.written)
    return f"backed up {len(made.manifest.streams)} streams, {size}, {written} of them new: {made.name}"


def _restored(node: RestoredNode, manifest: BackupManifest) -> dict[str, object]:
    return {
        "node_id": node.node_id,
        "streams": node.streams,
        "bytes": node.size,
        "created_at": utc(manifest.created_at).isoformat(timespec="seconds"),
        "replicas": {stream.name: stream.config.replicas for stream in manifest.streams},
        "tier": [stream.name for stream in manifest.streams if stream.config.tier],
    }


def _restored_text(node: RestoredNode, manifest: BackupManifest, data: Path) -> str:
    created = utc(manifest.created_at).isoformat(sep=" ", timespec="seconds")
    return (
        f"restored {node.streams} streams, {size_text(node.size)}, as of {created}: "
        f"start node {node.node_id} on {data}"
    )


def _print_list(store: BackupStore, place: str, as_json: bool) -> None:
    rows: list[dict[str, object]] = []
    for name in store.names():
        try:
            manifest = store.manifest(name)
        except DamagedBackup as error:
            rows.append({"backup": name, "streams": None, "bytes": None, "problem": error.description})
            continue
        size = sum(stream.size for stream in manifest.streams)
        rows.append({"backup": name, "streams": len(manifest.streams), "bytes": size, "problem": None})
    if as_json:
        for row in rows:
            print_json(row)
        return
    print_table(place, ("backup", "streams", "bytes", "problem"), [tuple(row.values()) for row in rows])
