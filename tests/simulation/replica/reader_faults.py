"""Read replicas that come, go, become replicas, and the other way round."""

from typing import Final

from envelope.types import NodeId, StreamName
from metadata.catalog.commands import ReassignReplicas, UpdateStream
from metadata.catalog.events import CommandRefused
from metadata.catalog.tables import Stream
from metadata.stream_patch import StreamPatch
from tests.simulation.replica.link_faults import LinkFaults
from tests.simulation.replica.messages import METADATA
from tests.simulation.replica.service_world import ServiceWorld
from tests.simulation.replica.swarm import LEASE
from tests.simulation.replica.targets import Targets

_ATTEMPTS: Final = 20


class ReaderFaults:
    """Asks the catalogue for other read replicas."""

    def __init__(self, world: ServiceWorld, targets: Targets, links: LinkFaults) -> None:
        self._world, self._targets, self._links = world, targets, links

    def exchange(self) -> None:
        """Name other read replicas, at times with other replicas, and again before anybody has noticed."""
        metadata, rng, counts = self._world.metadata, self._world.rng, self._world.trace.counts
        if metadata.down:
            return
        name = self._targets.stream().name
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            before = metadata.catalog.stream(name)
            assert before is not None, f"{name} exists"
            command = self._command(before)
            read = ",".join(command.read_replicas or ()) or "nobody"
            self._world.fault("exchange_readers", f"{name} read by {read} ({type(command).__name__})")
            if isinstance(metadata.apply(command)[0], CommandRefused):
                counts["readers_refused"] += 1
                continue
            after = metadata.catalog.stream(name)
            assert after is not None, f"{name} exists"
            counts["readers_changed"] += set(after.read_replicas) != set(before.read_replicas)
            counts["reader_promoted"] += bool(set(before.read_replicas) & set(after.replicas))
            counts["reader_demoted"] += bool(set(before.replicas) & set(after.read_replicas))

    def _command(self, stream: Stream) -> ReassignReplicas | UpdateStream:
        """Return a command that the catalogue takes, unless somebody has yet to remove its former log."""
        rng, nodes, target = self._world.rng, list(self._targets.nodes), stream.settled_replicas
        added = [node for node in stream.replicas if node not in target]
        if added and rng.random() < 0.5:  # the move is taken back, and who was to come reads
            readers = tuple(rng.sample(added, min(len(added), rng.choice((1, 2)))))
            return ReassignReplicas(stream.name, stream.incarnation, target, readers)
        if self._world.swarm.moves and rng.random() < 0.5:
            target = tuple(rng.sample(nodes, rng.randint(1, len(nodes))))
        moves = target != stream.settled_replicas or rng.random() < 0.3
        replicas = (*stream.settled_replicas, *target) if moves else stream.replicas
        free = [node for node in nodes if node not in replicas]
        readers = tuple(rng.sample(free, min(len(free), rng.choice((0, 1, 1, 2)))))
        if moves:
            return ReassignReplicas(stream.name, stream.incarnation, target, readers)
        patch = StreamPatch.model_validate({"read_replicas": len(readers)})
        return UpdateStream(
            stream=stream.name, patch=patch, incarnation=stream.incarnation, read_replicas=readers
        )

    def leave_and_return(self) -> None:
        """Let a node remove its log and have the stream again, while what it said before comes late."""
        metadata, rng = self._world.metadata, self._world.rng
        stream = self._targets.stream()
        going = [node for node in stream.holders if node not in (*stream.settled_replicas, stream.leader)]
        if metadata.down or stream.leader is None or not going:
            return
        node = rng.choice(going)
        self._world.fault("leave_and_return", f"{stream.name} at {node}")
        # Or the leader hears of both at once.
        self._links.hold_back([(node if rng.random() < 0.7 else METADATA, stream.leader)])
        readers = tuple(name for name in stream.read_replicas if name != node)
        metadata.apply(ReassignReplicas(stream.name, stream.incarnation, stream.settled_replicas, readers))
        self._world.timeline.after(LEASE // 20, self._return, stream.name, node, _ATTEMPTS)

    def _return(self, name: StreamName, node: NodeId, attempts: int) -> None:
        """Have the node hold the stream once it has removed its log, as a replica where streams are moved."""
        metadata, swarm = self._world.metadata, self._world.swarm
        stream = metadata.catalog.stream(name)
        assert stream is not None, f"{name} exists"
        owing = any(removal.incarnation == stream.incarnation for removal in metadata.catalog.removals(node))
        if attempts and (owing or metadata.down) and not self._world.healing:
            self._world.timeline.after(LEASE // 20, self._return, name, node, attempts - 1)
            return
        if not (owing or metadata.down or self._world.healing or node in stream.holders):
            target, readers = stream.settled_replicas, stream.read_replicas
            target, readers = ((*target, node), readers) if swarm.moves else (target, (*readers, node))
            metadata.apply(ReassignReplicas(name, stream.incarnation, target, readers))
            self._world.trace.counts["returned"] += node in self._holders(name)
        self._links.let_go(self._world.delay(LEASE // 4 + swarm.notice_delay))

    def _holders(self, name: StreamName) -> tuple[NodeId, ...]:
        stream = self._world.metadata.catalog.stream(name)
        return stream.holders if stream is not None else ()
