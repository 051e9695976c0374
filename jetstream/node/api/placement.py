"""The placement of replicas, new ones or more: on nodes that are alive, as the metadata leader knows them."""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from envelope.errors import InvalidConfig, NotLeader, UnknownStream
from envelope.types import Incarnation, NodeId, StreamName
from jetstream.node.runtime.clock import Clock
from metadata.api.requests import CreateStreamRequest, UpdateStreamRequest
from metadata.catalog.commands import CreateStream, UpdateStream
from metadata.catalog.holders import wanted_replicas
from metadata.node.catalogue.group import MetadataQuorum
from metadata.placement import (
    Placed,
    PlacementCandidate,
    beside_siblings,
    loads,
    place_changes,
    place_partitions,
    place_stream,
)
from metadata.rebalancing import planned
from metadata.stream_config import StreamConfig
from metadata.stream_patch import StreamPatch, with_default_replicas

_Placed = TypeVar("_Placed")

_INCARNATION_BYTES: Final = 8
_ALIVE_NS: Final = 4_000_000_000
"""How long a creation waits for enough nodes to be alive."""
_LOOK_SECONDS: Final = 0.05


class Placing:
    """Places replicas, and waits for nodes to be alive; used on the loop's thread."""

    def __init__(
        self,
        prefix: str,
        metadata: MetadataQuorum,
        clock: Clock,
        alive: Callable[[], frozenset[NodeId] | None],
    ) -> None:
        """``alive`` returns the nodes that can take a replica, None if this node does not know."""
        self._prefix = prefix
        self._catalog = metadata.catalog
        self._clock = clock
        self._alive = alive

    def config(self, request: CreateStreamRequest) -> StreamConfig:
        """Return what is to be created; without a number of replicas, with as many as it has, or the default.

        Raises:
            InvalidConfig: more replicas must hold a record than there are.
        """
        default = self._catalog.cluster.default_replicas
        if request.is_partitioned:
            rows = self._catalog.partition_rows(request.name)
            return request.config(len(planned(rows[0])) if rows else default)
        row = self._catalog.stream(StreamName(request.name))
        return request.config(default if row is None else row.config.replicas)

    async def creation(self, config: StreamConfig) -> CreateStream:
        """Return the command that creates a stream, on nodes that are alive now.

        Raises:
            NotLeader: this node cannot tell which nodes are alive.
            InvalidConfig: there are too few.
        """
        return self._command(config, await self._placed(lambda: self._place(config)))

    async def creations(self, configs: Sequence[StreamConfig]) -> list[CreateStream]:
        """Return the commands that create partitions of one stream, spread over the nodes that are alive now.

        Raises:
            NotLeader, InvalidConfig: as `creation`.
        """
        placed = await self._placed(lambda: self._place_partitions(configs))
        return [self._command(config, place) for config, place in zip(configs, placed, strict=True)]

    def _command(self, config: StreamConfig, placed: Placed) -> CreateStream:
        return CreateStream(
            config=config,
            incarnation=Incarnation(secrets.token_hex(_INCARNATION_BYTES)),
            created=self._clock.wall(),
            replicas=placed.replicas,
            leader=placed.replicas[0],
            api_prefix=self._prefix,
            read_replicas=placed.read_replicas,
            begun=False,
        )

    async def update(self, request: UpdateStreamRequest) -> UpdateStream:
        """Return the command that changes a stream, with nodes for as many replicas as it is to have.

        Raises:
            UnknownStream: there is no such stream.
            NotLeader, InvalidConfig: as `creation`.
        """
        patch = with_default_replicas(request.patch, self._catalog.cluster.default_replicas)
        name = StreamName(request.name)
        replicas, read_replicas = await self._placed(lambda: self._place_changes(name, patch))
        return UpdateStream(
            stream=name,
            patch=patch,
            api_prefix=self._prefix,
            read_replicas=read_replicas,
            replicas=replicas,
        )

    def candidates(self) -> list[PlacementCandidate]:
        """Return the nodes that can take a replica, with what they have.

        Raises:
            NotLeader: this node cannot tell.
        """
        alive = self._alive()
        if alive is None:
            raise NotLeader("only who leads the metadata log can place a stream")
        replicas, leaders = loads(self._catalog.streams())
        return [
            PlacementCandidate(node.node_id, node.rack, replicas[node.node_id], leaders[node.node_id])
            for node in self._catalog.nodes()
            if node.node_id in alive
        ]

    async def _placed(self, place: Callable[[], _Placed]) -> _Placed:
        """Return where replicas go; nodes that have just started are waited for."""
        waits_until = self._clock.monotonic() + _ALIVE_NS
        while True:
            try:
                return place()
            except (InvalidConfig, NotLeader):
                if self._clock.monotonic() > waits_until:
                    raise
            await asyncio.sleep(_LOOK_SECONDS)

    def _place(self, config: StreamConfig) -> Placed:
        existing = self._catalog.stream(StreamName(config.name))
        if existing is not None:
            return Placed(existing.replicas, existing.read_replicas)
        return place_stream(self.candidates(), config.replicas, config.read_replicas)

    def _place_partitions(self, configs: Sequence[StreamConfig]) -> list[Placed]:
        siblings = self._catalog.partition_rows(configs[0].partition_of or "") if configs else ()
        return place_partitions(self.candidates(), siblings, configs)

    def _place_changes(
        self, name: StreamName, patch: StreamPatch
    ) -> tuple[tuple[NodeId, ...] | None, tuple[NodeId, ...] | None]:
        """Return the nodes for the replicas, and for the read replicas; None: they stay as they are."""
        row = self._catalog.stream(name)
        if row is None:
            raise UnknownStream(f"no stream {name!r}", stream=name)
        # While it is being moved another number is refused, wherever they were.
        replicas = wanted_replicas(row, patch) if row.target is None else None
        read_replicas = (patch.read_replicas or 0) if "read_replicas" in patch.model_fields_set else None
        if replicas is None and read_replicas is None:
            return None, None
        siblings = self._catalog.partition_rows(row.config.partition_of or "")
        candidates = beside_siblings(self.candidates(), siblings)
        return place_changes(candidates, row, replicas, read_replicas)
