"""``jetstream stream reassign``, ``jetstream cluster drain | rebalance | remove``: which node holds what."""

from typing import Annotated, Final

import typer

from jetstream.cli.client_connection import connected
from jetstream.cli.options.nats_options import NatsOptions
from jetstream.cli.output.console import print_json, print_result, print_table
from jetstream.cli.program.help_text import Json, StreamArgument
from metadata.api.move_responses import MovesResponse, RemoveNodeResponse

REASSIGN_EXAMPLES: Final = (
    "jetstream stream reassign orders n2 n3 n4",
    "jetstream stream reassign orders --read-replica n5 --read-replica n6",
    "jetstream stream reassign orders --cancel",
)
DRAIN_EXAMPLES: Final = ("jetstream cluster drain n1",)
REBALANCE_EXAMPLES: Final = ("jetstream cluster rebalance --dry-run", "jetstream cluster rebalance")
REMOVE_EXAMPLES: Final = ("jetstream cluster remove n1",)

_NodeArgument = Annotated[str, typer.Argument(metavar="NODE", help="Id of the node.")]


async def reassign(
    nats: NatsOptions,
    name: StreamArgument,
    nodes: Annotated[
        list[str] | None, typer.Argument(metavar="NODE", help="Nodes to hold it, the preferred leader first.")
    ] = None,
    read_replicas: Annotated[
        list[str] | None,
        typer.Option("--read-replica", metavar="NODE", help="Node for a read replica; repeatable."),
    ] = None,
    no_read_replicas: Annotated[
        bool, typer.Option("--no-read-replicas", help="Let all read replicas go.")
    ] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="End the move that is under way.")] = False,
    as_json: Json = False,
) -> None:
    """Move a stream's replicas, its read replicas, or both to these nodes while it is in use.

    The new ones are filled first; once they are in sync one of them leads, and the others are removed. It
    goes on by itself: `stream info` shows a target until it is there. Read replicas are exchanged at once;
    those that are named are all that there are then. Of both, what is not named stays where it is.
    """
    is_about_readers = bool(read_replicas) or no_read_replicas
    if cancel == (bool(nodes) or is_about_readers):
        raise typer.BadParameter("name the nodes to hold the stream, or --cancel")
    if read_replicas and no_read_replicas:
        raise typer.BadParameter("--read-replica or --no-read-replicas, not both")
    body: dict[str, object] = {"name": name}
    if cancel:
        body["cancel"] = True
    if nodes:
        body["replicas"] = nodes
    if is_about_readers:
        body["read_replicas"] = read_replicas or []
    await _move(nats, "stream.reassign", body, as_json)


async def drain(nats: NatsOptions, node: _NodeArgument, as_json: Json = False) -> None:
    """Move every replica of a node to the others, so that it can leave; it goes on by itself.

    Refused if a stream has as many replicas as there are nodes. Until the node is stopped it may be given new
    streams: drain it once more then.
    """
    await _move(nats, "cluster.drain", {"node": node}, as_json)


async def rebalance(
    nats: NatsOptions,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be moved.")] = False,
    as_json: Json = False,
) -> None:
    """Even out replicas and leaders over the nodes that are alive, with few moves; it goes on by itself."""
    await _move(nats, "cluster.rebalance", {"dry_run": dry_run}, as_json)


async def remove(nats: NatsOptions, node: _NodeArgument, as_json: Json = False) -> None:
    """Forget a node that holds nothing and does not come back; a voter of the metadata log always stays."""
    async with connected(nats) as client:
        answer = await client.requests.ask("cluster.remove", {"node": node}, RemoveNodeResponse)
    print_result(answer, f"forgot node {answer.node}", as_json)


async def _move(nats: NatsOptions, operation: str, body: dict[str, object], as_json: bool) -> None:
    async with connected(nats) as client:
        answer = await client.requests.ask(operation, body, MovesResponse)
    if as_json:
        print_json(answer)
        return
    rows = (
        (
            move.stream,
            _holders(move.before, move.read_replicas_before),
            _holders(move.after, move.read_replicas_after),
        )
        for move in answer.moves
    )
    print_table(f"{answer.total:,} streams", ("stream", "from", "to"), rows)


def _holders(replicas: list[str], read_replicas: list[str]) -> str:
    return ", ".join(replicas) + (f" + {', '.join(read_replicas)}" if read_replicas else "")
