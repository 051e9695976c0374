"""``jetstream tier ls`` and ``jetstream stream restore``: what an object store has of streams."""

import os
from typing import Annotated, Any, Final

import typer

from envelope.errors import InvalidConfig
from jetstream.cli.client_connection import connected
from jetstream.cli.options.nats_options import NatsOptions
from jetstream.cli.options.quantities import size_text
from jetstream.cli.output.console import print_json, print_result, print_table
from jetstream.cli.program.help_text import Json, StreamArgument
from jetstream.node.settings.node_config import ENV_PREFIX
from jetstream.tier.object_store import ObjectStore, without_secrets
from jetstream.tier.restore import Remains, all_remains
from metadata.api.responses import utc

TIER_VARIABLE: Final = f"{ENV_PREFIX}TIER"
LIST_STORE_EXAMPLES: Final = (
    "jetstream tier ls /srv/tier",
    "JETSTREAM_NODE_TIER='s3://bucket/streams?region=eu-north-1' jetstream tier ls --json",
)
RESTORE_EXAMPLES: Final = (
    "jetstream stream restore orders",
    "jetstream stream restore orders --replicas 1 --incarnation 1f0c9c5ad1b1ee70",
)


def list_store(
    uri: Annotated[
        str | None,
        typer.Argument(metavar="[URI]", help=f"Of the object store, or a folder; default: {TIER_VARIABLE}."),
    ] = None,
    as_json: Json = False,
) -> None:
    """List what an object store has of streams, without a node: every life of each, and what is missing.

    Give a URI that holds a password by the environment, where other users of the machine do not see it.
    """
    place = uri or os.environ.get(TIER_VARIABLE)
    if not place:
        raise InvalidConfig(f"no object store: give a URI, or set {TIER_VARIABLE}")
    store = ObjectStore.at(place)
    store.check_folder()
    found = all_remains(store)
    if as_json:
        for remains in found:
            print_json(_properties(remains))
        return
    columns = ("stream", "life", "first", "end", "segments", "size", "written", "missing")
    print_table(without_secrets(place), columns, [_row(remains) for remains in found])


def _row(remains: Remains) -> tuple[object, ...]:
    told = _properties(remains)
    return (
        told["stream"],
        told["incarnation"],
        told["start"],
        told["end"],
        told["segments"],
        size_text(told["bytes"]),
        told["written_at"],
        len(remains.missing),
    )


def _properties(remains: Remains) -> dict[str, Any]:
    manifest = remains.manifest
    return {
        "stream": manifest.name,
        "incarnation": manifest.incarnation,
        "start": manifest.start,
        "end": manifest.end,
        "segments": len(manifest.segments),
        "bytes": sum(segment.size for segment in manifest.segments),
        "written_at": utc(manifest.written_at).isoformat(timespec="seconds"),
        "manifest": remains.path,
        "missing": list(remains.missing),
    }


async def restore(
    nats: NatsOptions,
    name: StreamArgument,
    incarnation: Annotated[
        str | None,
        typer.Option("--incarnation", metavar="LIFE", help="Which life of it (default: the newest)."),
    ] = None,
    replicas: Annotated[
        int | None, typer.Option("--replicas", min=1, help="Copies (default: as many as it had).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a lost stream again from what the nodes' object store has of it.

    It has the same offsets, records and settings, and goes on behind them; what was never uploaded is lost.
    Records are fetched when they are read. Only for a stream whose cluster is gone: the objects of its
    earlier life are used where they lie, and stay there even if the new stream is deleted.
    """
    async with connected(nats) as client:
        stream = await client.streams.restore(name, incarnation, replicas)
    print_result(
        stream,
        f"restored stream {name}: offsets {stream.log_start_offset} to {stream.log_end_offset}",
        as_json,
    )
