"""``jetstream stream elect``: elect a leader for a stream whose replicas in sync are all lost."""

import asyncio
from typing import Annotated, Final

import typer

from envelope.errors import JetstreamError
from jetstream.cli.client_connection import connected
from jetstream.cli.options.nats_options import NatsOptions
from jetstream.cli.output.console import print_result, print_table
from jetstream.cli.program.help_text import Json, StreamArgument
from jetstream.client.connection import JetstreamClient
from metadata.api.move_responses import ElectLeaderResponse
from metadata.api.responses import StreamInfo

ELECT_EXAMPLES: Final = (
    "jetstream stream elect orders --unclean n2",
    "jetstream stream elect orders --unclean n2 --yes",
)


async def elect(
    nats: NatsOptions,
    name: StreamArgument,
    unclean: Annotated[
        str, typer.Option("--unclean", metavar="NODE", help="Node to lead the stream, whatever it has of it.")
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not show and ask first.")] = False,
    as_json: Json = False,
) -> None:
    """Make a node lead a stream that is offline, though it is not in sync: acked records may be lost.

    Only if every replica in sync is dead and will not come back in time: bring one back instead, and nothing
    is lost. Refused while the stream is led, or a replica in sync is alive. Records that only others have are
    cut off when they come back. First it shows how much each node that can be asked has, and asks.
    """
    async with connected(nats) as client:
        if not yes:
            await _show_logs(client, name)
            question = f"Let {unclean} lead {name}? Acked records that only others have are lost for good."
            if not typer.confirm(question, err=True):
                raise typer.Exit(1)
        body: dict[str, object] = {"name": name, "node": unclean, "unclean": True}
        done = await client.requests.ask("stream.elect", body, ElectLeaderResponse)
    print_result(
        done,
        f"{done.leader} leads {done.name} in epoch {done.leader_epoch}; given up: {_given_up(done)}",
        as_json,
    )


def _given_up(done: ElectLeaderResponse) -> str:
    return ", ".join(done.given_up) or "nobody"


async def _show_logs(client: JetstreamClient, name: str) -> None:
    """Print the log of the stream that each node reports."""
    stream = await client.streams.info(name)
    nodes = [*stream.replicas, *stream.read_replicas]
    answers = await asyncio.gather(*(_asked(client, node, name) for node in nodes))
    rows = (
        (
            node,
            "read replica" if node in stream.read_replicas else "replica",
            node in stream.isr,
            None if info is None else info.log_end_offset,
            None if info is None else info.high_watermark,
        )
        for node, info in zip(nodes, answers, strict=True)
    )
    print_table(f"what there is of {name}", ("node", "role", "in sync", "end", "high watermark"), rows)


async def _asked(client: JetstreamClient, node: str, name: str) -> StreamInfo | None:
    try:
        return await client.requests.ask(f"node.{node}.stream.info", {"name": name}, StreamInfo)
    except JetstreamError:  # said as a dash: it cannot be asked
        return None
