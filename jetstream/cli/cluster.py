"""``jetstream cluster info | update | rotate-key``: nodes and replication; settings; the key of tickets."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Final

import typer

from envelope.errors import JetstreamError
from jetstream.cli.client_connection import connected
from jetstream.cli.options.nats_options import NatsOptions
from jetstream.cli.output.console import print_json, print_line, print_result, print_table
from jetstream.cli.program.help_text import Json
from jetstream.client.connection import JetstreamClient
from metadata.api.responses import ClusterInfo, NodeInfo, StreamInfo, StreamSummary
from metadata.api.ticket_responses import RotateKeyResponse

INFO_EXAMPLES: Final = (
    "jetstream cluster info",
    "jetstream cluster info --json | jq .cluster.metadata_leader",
)

UPDATE_CLUSTER_EXAMPLES: Final = (
    "jetstream cluster update --default-replicas 3",
    "jetstream cluster update --voters 5",
    "jetstream cluster update --feature-level latest",
)

ROTATE_KEY_EXAMPLES: Final = ("jetstream cluster rotate-key", "jetstream cluster rotate-key --revoke")

_ASKED_AT_ONCE: Final = 16
_NO_ANSWER: Final = "no answer"


@dataclass(frozen=True, slots=True)
class StreamReplication:
    """The replication of a stream, as its leader reports it.

    Attributes:
        name: of the stream.
        state: ``online``, ``offline``, or that its leader gave no answer.
        leader: None if there is none.
        leader_epoch: of the leader.
        replicas: all nodes that are to hold it.
        isr: those in sync.
        lag: records that the slowest replica does not have on disk; None if that of one is unknown.
    """

    name: str
    state: str
    leader: str | None
    leader_epoch: int
    replicas: list[str]
    isr: list[str]
    lag: int | None


async def info(nats: NatsOptions, as_json: Json = False) -> None:
    """Show the nodes, who leads the metadata log, and for each stream who leads it and who is in sync.

    A node is alive while it holds a lease; a dash means that nobody leads the metadata log who could say. The
    lag of a stream is the number of records that its slowest replica does not have on disk.
    """
    async with connected(nats) as client:
        cluster = await client.requests.cluster_info()
        streams = await _replications(client, await client.streams.list())
    if as_json:
        print_json(
            {"cluster": cluster.model_dump(mode="json"), "streams": [asdict(stream) for stream in streams]}
        )
    else:
        _show(cluster, streams)


async def update_cluster(
    nats: NatsOptions,
    default_replicas: Annotated[
        int | None,
        typer.Option(
            "--default-replicas", min=1, help="Copies of streams that are created without --replicas."
        ),
    ] = None,
    voters: Annotated[
        int | None, typer.Option("--voters", help="Nodes that decide about the cluster: 1, 3 or 5.")
    ] = None,
    feature_level: Annotated[
        str | None,
        typer.Option(
            "--feature-level",
            metavar="N|latest",
            help="What nodes may do from now on, once all of them are upgraded; there is no way back.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Change settings that hold for the whole cluster; streams that there are stay as they are.

    Voters come and go one change after the other, as nodes are there; `jetstream cluster info` shows them.
    """
    is_number = feature_level is not None and feature_level.isdecimal()
    settings = {
        "default_replicas": default_replicas,
        "voters": voters,
        "feature_level": int(feature_level) if feature_level and is_number else feature_level,
    }
    changes: dict[str, object] = {name: value for name, value in settings.items() if value is not None}
    if not changes:
        raise typer.BadParameter("choose --default-replicas, --voters or --feature-level")
    async with connected(nats) as client:
        done = await client.requests.ask("cluster.update", changes, ClusterInfo)
    texts = {
        "default_replicas": _default_text(done),
        "voters": _voters_text(done),
        "feature_level": _level_text(done),
    }
    print_result(done, "; ".join(texts[name] for name in changes), as_json)


def _level_text(cluster: ClusterInfo) -> str:
    return f"the cluster is at feature level {cluster.feature_level}"


def _default_text(cluster: ClusterInfo) -> str:
    copies = "replica" if cluster.default_replicas == 1 else "replicas"
    return f"a new stream has {cluster.default_replicas} {copies} by default"


def _voters_text(cluster: ClusterInfo) -> str:
    wanted = "" if cluster.voters_wanted is None else f" ({cluster.voters_wanted} wanted)"
    soon = f"; {', '.join(cluster.learners)} soon" if cluster.learners else ""
    return f"voters{wanted}: {', '.join(cluster.voters)}{soon}"


async def rotate_key(
    nats: NatsOptions,
    revoke: Annotated[
        bool, typer.Option("--revoke", help="End all tickets now: whoever still may asks for new ones.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Let a new key sign the tickets of readers; tickets of the key before go on to their end.

    A key that is 30 days old is replaced by itself. This is for one that somebody has seen, or, with
    `--revoke`, for rights that are to end at once.
    """
    async with connected(nats) as client:
        done = await client.requests.ask("cluster.rotate_key", {"revoke": revoke}, RotateKeyResponse)
    ended = "; all earlier tickets have ended" if done.revoked else ""
    print_result(done, f"key {done.key_id} signs tickets{ended}", as_json)


async def _replications(
    client: JetstreamClient, summaries: Sequence[StreamSummary]
) -> list[StreamReplication]:
    """Ask the leader of every stream, some at once."""
    found: list[StreamReplication] = []
    for first in range(0, len(summaries), _ASKED_AT_ONCE):
        asked = summaries[first : first + _ASKED_AT_ONCE]
        found += await asyncio.gather(*(_replication(client, summary) for summary in asked))
    return found


async def _replication(client: JetstreamClient, summary: StreamSummary) -> StreamReplication:
    stream: StreamInfo | StreamSummary = summary
    state, lag = _NO_ANSWER, None
    try:
        stream = info = await client.streams.info(summary.name)
    except JetstreamError:  # said as its state: what the other streams say is worth showing
        pass
    else:
        state, lag = info.state, _lag(info)
    return StreamReplication(
        name=summary.name,
        state=state,
        leader=stream.leader,
        leader_epoch=stream.leader_epoch,
        replicas=stream.replicas,
        isr=stream.isr,
        lag=lag,
    )


def _lag(stream: StreamInfo) -> int | None:
    replicas = [state for state in stream.replica_states if not state.is_read_replica]
    lags = [replica.lag for replica in replicas if replica.lag is not None]
    return max(lags) if lags and len(lags) == len(stream.replicas) else None


def _show(cluster: ClusterInfo, streams: Sequence[StreamReplication]) -> None:
    columns = ("node", "role", "alive", "rack", "epoch", "socket", "http", "peers", "version", "level")
    rows = (
        (
            node.id,
            node.role,
            node.alive,
            node.rack,
            node.node_epoch,
            f"{node.host}:{node.port}",
            None if node.http_port is None else f"{node.host}:{node.http_port}",
            _peer_address(node),
            node.version,
            node.feature_level,
        )
        for node in cluster.nodes
    )
    print_table(f"cluster {cluster.name}", columns, rows)
    print_line(f"the metadata log is led by {cluster.metadata_leader or 'nobody'}")
    print_line(_voters_text(cluster))
    print_line(_default_text(cluster))
    print_line(_level_text(cluster))
    stream_columns = ("stream", "state", "leader", "epoch", "in sync", "not in sync", "lag")
    stream_rows = (
        (
            stream.name,
            stream.state,
            stream.leader,
            stream.leader_epoch,
            ", ".join(stream.isr),
            ", ".join(node for node in stream.replicas if node not in stream.isr),
            stream.lag,
        )
        for stream in streams
    )
    print_table(f"{len(streams):,} stream{'' if len(streams) == 1 else 's'}", stream_columns, stream_rows)


def _peer_address(node: NodeInfo) -> str | None:
    return None if node.peer_port is None else f"{node.peer_host}:{node.peer_port}"
