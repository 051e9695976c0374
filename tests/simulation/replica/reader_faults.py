"""Read replicas that come, go, become replicas, and the other way round."""

from metadata.catalog.commands import ReassignReplicas, UpdateStream
from metadata.catalog.events import Refused
from metadata.catalog.tables import Stream
from metadata.stream_patch import StreamPatch
from tests.simulation.replica.service_world import ServiceWorld
from tests.simulation.replica.targets import Targets


class ReaderFaults:
    """Asks the catalogue for other read replicas."""

    def __init__(self, world: ServiceWorld, targets: Targets) -> None:
        self._world, self._targets = world, targets

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
            if isinstance(metadata.apply(command)[0], Refused):
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
        return UpdateStream(stream.name, patch, stream.incarnation, read_replicas=readers)
