"""``jetstream cursor …``: look at consumers' cursors, set and delete them."""

from typing import Annotated, Final

import typer

from jetstream.cli.client_connection import connected
from jetstream.cli.options.nats_options import NatsOptions
from jetstream.cli.output.console import (
    print_json,
    print_line,
    print_properties,
    print_result,
    print_table,
)
from jetstream.cli.program.help_text import Json, StreamArgument
from metadata.api.responses import CursorInfo

LIST_CURSORS_EXAMPLES: Final = (
    "jetstream cursor ls",
    "jetstream cursor ls --stream orders --json | jq -r '[.consumer, .offset] | @tsv'",
)
GET_EXAMPLES: Final = ("jetstream cursor get billing orders",)
SET_CURSOR_EXAMPLES: Final = (
    "jetstream cursor set billing orders 0",
    "jetstream cursor set billing orders 42 --metadata 'after the repair'",
)
DELETE_EXAMPLES: Final = ("jetstream cursor delete billing orders",)

ConsumerArgument = Annotated[str, typer.Argument(metavar="CONSUMER", help="Name of the consumer.")]


async def list_cursors(
    nats: NatsOptions,
    consumer: Annotated[
        str | None, typer.Option("--consumer", metavar="NAME", help="Only those of this consumer.")
    ] = None,
    stream: Annotated[
        str | None, typer.Option("--stream", metavar="NAME", help="Only those in this stream.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List cursors by consumer and stream; with --json one object a line."""
    async with connected(nats) as client:
        found = await client.cursors.list(consumer, stream)
    if as_json:
        for cursor in found:
            print_json(cursor)
        return
    columns = ("consumer", "stream", "next offset", "committed", "metadata")
    rows = ((each.consumer, each.stream, each.offset, _when(each), each.metadata) for each in found)
    print_table(f"{len(found):,} cursor{'' if len(found) == 1 else 's'}", columns, rows)


async def get(
    nats: NatsOptions, consumer: ConsumerArgument, stream: StreamArgument, as_json: Json = False
) -> None:
    """Show where a consumer reads on in a stream."""
    async with connected(nats) as client:
        cursor = await client.cursors.get(consumer, stream)
    if as_json:
        print_json(cursor)
    elif cursor.offset is None:
        print_line(f"{consumer} has no cursor in {stream}")
    else:
        shown: dict[str, object] = {
            "next offset": cursor.offset,
            "committed": _when(cursor),
            "incarnation": cursor.incarnation or "",
            "metadata": cursor.metadata or "",
        }
        print_properties(f"{consumer} in {stream}", shown)


async def set_cursor(
    nats: NatsOptions,
    consumer: ConsumerArgument,
    stream: StreamArgument,
    offset: Annotated[int, typer.Argument(min=0, metavar="OFFSET", help="The next one to read.")],
    metadata: Annotated[
        str | None, typer.Option("--metadata", metavar="TEXT", help="Stored beside it.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Set where a consumer reads on, forward or back: once it has stopped, as it would commit over this."""
    async with connected(nats) as client:
        await client.cursors.commit(consumer, stream, offset, metadata=metadata)
        stored = await client.cursors.get(consumer, stream) if as_json else None
    if stored is not None:
        print_json(stored)
    else:
        print_line(f"{consumer} goes on at offset {offset} of {stream}")


async def delete(
    nats: NatsOptions, consumer: ConsumerArgument, stream: StreamArgument, as_json: Json = False
) -> None:
    """Delete a consumer's cursor in a stream: it begins anew when it starts again."""
    async with connected(nats) as client:
        await client.cursors.delete(consumer, stream)
    print_result(
        CursorInfo(consumer=consumer, stream=stream, offset=None),
        f"deleted the cursor of {consumer} in {stream}",
        as_json,
    )


def _when(cursor: CursorInfo) -> str:
    return "" if cursor.committed_at is None else cursor.committed_at.isoformat(timespec="seconds")
