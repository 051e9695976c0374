"""What goes wrong with reigns: elections nobody asked for, broken connections, no metadata group."""

from envelope.types import NodeId, StreamName
from metadata.catalog.commands import CancelReassignment, ReassignReplicas
from tests.simulation.replica.link_faults import LinkFaults
from tests.simulation.replica.metadata_service import is_registered
from tests.simulation.replica.service_world import ServiceWorld
from tests.simulation.replica.swarm import LEASE
from tests.simulation.replica.targets import Targets


class ReignFaults:
    """Hands over, there and back, and takes the metadata group away."""

    def __init__(self, world: ServiceWorld, targets: Targets, links: LinkFaults) -> None:
        self._world, self._targets, self._links = world, targets, links

    def disconnect(self) -> None:
        """Break the connection of two nodes."""
        if len(self._targets.nodes) > 1:
            one, other = self._targets.some(2)
            self._world.fault("disconnect", f"{one.name}-{other.name}")
            self._world.connections.break_off(one.name, other.name)
            one.peer_lost(other.name, refused=not other.alive)
            other.peer_lost(one.name, refused=not one.alive)

    def hand_over(self) -> None:
        """Elect any holder, sometimes twice in a row; the catalogue must refuse who is not in the ISR."""
        metadata, rng = self._world.metadata, self._world.rng
        if metadata.down:
            return
        name = self._targets.stream().name
        for _ in range(rng.choice((1, 1, 2, 3))):
            stream = metadata.catalog.stream(name)
            assert stream is not None, f"{name} exists"
            in_sync = [member.node_id for member in stream.isr if is_registered(metadata.catalog, member)]
            elected = rng.choice(in_sync if in_sync and rng.random() < 0.9 else stream.holders)
            self._world.fault("hand_over", f"{name} to {elected}")
            metadata.hand_over(stream, elected)

    def there_and_back(self) -> None:
        """A leader is replaced and elected again at once, while some links keep what they carry."""
        world, rng = self._world, self._world.rng
        stream = self._targets.stream()
        others = [name for name in stream.isr_nodes if name != stream.leader]
        if world.metadata.down or stream.leader is None or not others:
            return
        world.fault("there_and_back", f"{stream.name} from {stream.leader}")
        elected = rng.choice(others)
        third = [name for name in stream.holders if name not in (stream.leader, elected)]
        if third and rng.random() < 0.5:
            # One has what the next leader lacks, and loses it there; what it said before comes back late.
            self._links.hold_back([(rng.choice(third), stream.leader), (stream.leader, elected)])
        else:
            self._links.hold_back_any(share=0.5)
        first = LEASE // 20 + world.delay(LEASE // 4)
        second = first + world.delay(LEASE // 4 + world.swarm.notice_delay)
        world.timeline.after(first, self._elect, stream.name, elected)
        world.timeline.after(second, self._elect, stream.name, stream.leader)
        self._links.let_go(second + world.delay(LEASE // 10))

    def _elect(self, name: StreamName, node: NodeId) -> None:
        metadata = self._world.metadata
        stream = metadata.catalog.stream(name)
        if stream is not None and not metadata.down and not self._world.healing:
            metadata.hand_over(stream, node)

    def reassign(self) -> None:
        """Move a stream to any nodes, or take a move back; at times again before anybody has noticed."""
        metadata, rng = self._world.metadata, self._world.rng
        if metadata.down:
            return
        name = self._targets.stream().name
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            stream = metadata.catalog.stream(name)
            assert stream is not None, f"{name} exists"
            if stream.target is not None and rng.random() < 0.4:
                self._world.fault("reassign", f"{name} back")
                metadata.apply(CancelReassignment(stream.name, stream.incarnation))
                continue
            nodes = list(self._targets.nodes)
            target = tuple(rng.sample(nodes, rng.randint(1, len(nodes))))
            self._world.fault("reassign", f"{name} to {','.join(target)}")
            metadata.apply(ReassignReplicas(stream.name, stream.incarnation, target))

    def take_down(self) -> None:
        """Let the metadata group be away for a moment."""
        metadata = self._world.metadata
        if not metadata.down:
            self._world.fault("metadata_down", "")
            metadata.go_down()
            self._world.timeline.after(self._links.moment(), self._metadata_back)

    def _metadata_back(self) -> None:
        if self._world.metadata.down:
            self._world.fault("metadata_back", "")
            self._world.metadata.come_back()
