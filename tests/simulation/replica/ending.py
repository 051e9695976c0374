"""What every cluster of replicas must come to once nothing goes wrong any more."""

from collections.abc import Collection, Mapping, Sequence

from envelope.types import NodeId
from metadata.catalog.tables import Stream
from tests.simulation.replica.checkers.damages import is_beyond_repair
from tests.simulation.replica.node import SimulatedNode
from tests.simulation.replica.publisher import Publisher
from tests.simulation.replica.reader import Reader
from tests.simulation.replica.world import World
from tests.simulation.violation import Violation


class Ending:
    """Looks at the catalogue, the nodes and the clients of one run."""

    def __init__(
        self,
        world: World,
        nodes: Mapping[NodeId, SimulatedNode],
        publishers: Sequence[Publisher],
        readers: Sequence[Reader],
    ) -> None:
        self._world, self._nodes, self._publishers, self._readers = world, nodes, publishers, readers

    def is_settled(self, left_dead: Collection[NodeId]) -> bool:
        """Tell whether every stream that can be is whole, without the nodes that are to stay dead."""
        streams = self._world.checks.catalog.streams()
        return all(
            self._is_lost(stream, left_dead) or self._is_whole(stream, left_dead) for stream in streams
        )

    def _is_lost(self, stream: Stream, left_dead: Collection[NodeId]) -> bool:
        """Tell whether nobody may lead: the last members of the ISR stay dead, or have lost their disks.

        Nor, where the stream permits it, may who was once in sync and has its disk. Or whether nobody who is
        there has intact what the stream needs.
        """
        nodes = self._nodes
        able = {
            (member.node_id, member.directory)
            for member in stream.isr
            if member.node_id not in stream.blank and stream.name in self._nodes[member.node_id].images
        }
        if stream.config.unclean_election:
            able |= self._world.checks.elections.have_been_in_sync(stream)
        is_offline = not any(
            name not in left_dead and nodes[name].directory == directory for name, directory in able
        )
        return is_offline or self._is_beyond_repair(stream, left_dead)

    def _is_beyond_repair(self, stream: Stream, left_dead: Collection[NodeId]) -> bool:
        nodes = [self._nodes[name] for name in stream.replicas if name not in left_dead]
        there = {node.name: node.images[stream.name] for node in nodes if stream.name in node.images}
        return is_beyond_repair(stream, self._world.checks.truths[stream.name].newest.end, there)

    def _is_whole(self, stream: Stream, left_dead: Collection[NodeId]) -> bool:
        living = [self._nodes[name] for name in stream.replicas if name not in left_dead]
        if len(living) < stream.config.insync_minimum:
            return True
        is_moving = stream.target is not None and not set(left_dead) & set(stream.target)
        is_in_sync = set(stream.isr_nodes) == {node.name for node in living}
        if stream.leader is None or not is_in_sync or is_moving:
            return False
        if not all(publisher.done for publisher in self._publishers if publisher.stream == stream.name):
            return False
        living += [self._nodes[name] for name in stream.read_replicas if name not in left_dead]
        lives = [node.life for node in living if node.life is not None]
        if len(lives) < len(living) or not all(stream.name in life.replicas for life in lives):
            return False
        if self._world.swarm.has_read_replicas and not self._is_tidy(stream, left_dead):
            return False
        replicas = [life.replicas[stream.name] for life in lives]
        committed = self._world.checks.truths[stream.name].newest
        end = self._nodes[stream.leader].images[stream.name].log_end
        return all(
            replica.watermark.offset == replica.image.log_end == replica.image.counted_end == end
            and replica.image.damage.is_none
            and committed.is_in(replica.image, end)
            for replica in replicas
        )

    def _is_tidy(self, stream: Stream, left_dead: Collection[NodeId]) -> bool:
        """Tell whether who does not hold the stream has nothing of it, and the catalogue knows."""
        others = [node for node in self._nodes.values() if node.name not in (*stream.holders, *left_dead)]
        owing = {
            name
            for removal in self._world.checks.catalog.removals()
            for name in removal.pending
            if removal.incarnation == stream.incarnation
        }
        return not any(stream.name in node.images or node.name in owing for node in others)

    def check(self, left_dead: Collection[NodeId]) -> None:
        """Check that all that was promised is there.

        Raises:
            Violation: it is not.
        """
        checks = self._world.checks
        for stream in self._world.checks.catalog.streams():
            truths = checks.truths[stream.name]
            committed = truths.newest
            for reader in self._readers:
                if reader.stream == stream.name:
                    reader.check(truths)
            self._world.trace.counts["refusal_unclear"] += checks.publishing[stream.name].check_refusals()
            is_lost = self._is_lost(stream, left_dead) or len(stream.isr) < stream.config.insync_minimum
            self._check_history(stream, is_lost=is_lost)
            if is_lost:
                self._world.trace.counts["stream_lost"] += 1
                self._world.trace.counts["beyond_repair"] += self._is_beyond_repair(stream, left_dead)
                continue
            for member in (*stream.isr_nodes, *stream.read_replicas):
                image = self._nodes[member].images[stream.name]
                if image.log_end != committed.end or not committed.is_in(image, committed.end):
                    raise Violation(
                        f"{member} ends with {stream.name} to {image.log_end}; committed is {committed.end}"
                    )
            for value, (offset, epoch) in checks.publishing[stream.name].acked.items():
                is_there = offset < committed.end and committed.records[offset][1] == value
                if not is_there and not truths.is_lost(offset, epoch, stream.leader_epoch):
                    there = committed.records[offset : offset + 1]
                    raise Violation(f"{value} was acked at {offset}: there is {there}")

    def _check_history(self, stream: Stream, *, is_lost: bool) -> None:
        """Have somebody read all there is, then judge what the clients saw; not if anything was removed.

        Nor if anything may have been lost.
        """
        checks = self._world.checks
        truths = checks.truths[stream.name]
        if truths.newest.forgotten or truths.has_parted:
            self._world.trace.counts["parted"] += truths.has_parted
            return
        history = checks.histories[stream.name]
        for value in checks.publishing[stream.name].certainly_refused():
            history.failed(value)
        if not is_lost:
            assert stream.leader is not None, f"{stream.name} is settled"
            image = self._nodes[stream.leader].images[stream.name]
            records = image.records(0, image.log_end)
            history.poll("the last reader", [(row, value) for row, (_, value) in enumerate(records)])
        history.check(drained=not is_lost)
        self._world.trace.counts["history"] += len(history.polls)

    def text(self) -> str:
        """Return what every stream and replica is now."""
        parts = [
            f"{stream.name}: leader {stream.leader} e{stream.leader_epoch} isr {stream.isr_nodes}"
            for stream in self._world.checks.catalog.streams()
        ]
        for node in self._nodes.values():
            for replica in node.life.replicas.values() if node.life else ():
                machine = replica.reign.leader if replica.reign else replica.follower
                parts.append(f"{replica.title} {machine} to {replica.image.log_end}")
        waiting = [publisher for publisher in self._publishers if not publisher.done]
        return "; ".join(parts) + f"; {len(waiting)} publishers wait"
