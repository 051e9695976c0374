"""All places where coordinators run: who leads, who is elected when one fails, who does not know it yet."""

from collections.abc import Callable

from tests.simulation.groups.coordinator_node import CoordinatorNode
from tests.simulation.groups.world import PLACES, World


class Coordinators:
    """Two nodes, of which one leads; the other one may believe that it still does."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.nodes = {place: CoordinatorNode(world, place) for place in PLACES}
        self.nodes[PLACES[0]].lead()

    def __str__(self) -> str:
        return ", ".join(map(str, self.nodes.values()))

    @property
    def leader(self) -> CoordinatorNode | None:
        """Who really leads."""
        return next((node for node in self.nodes.values() if node.leads), None)

    @property
    def rests(self) -> bool:
        """One leads, and changes nothing."""
        leader = self.leader
        return leader is not None and leader.rests

    def in_a_write(self, fault: Callable[[], None]) -> Callable[[], None]:
        """Return that fault, which happens now or while something is written."""

        def strike() -> None:
            if self._world.rng.random() < 0.5:
                fault()
            else:
                self._world.log.upset = lambda: None if self._world.healing else fault()

        return strike

    def fail_over(self) -> None:
        """Let the leader end; somebody is elected a while later."""
        leader, world = self.leader, self._world
        if leader is not None:
            leader.fail()
            world.leader = None
            world.timeline.after(world.delay(world.swarm.heartbeat), self._elect, world.log.reign)
            world.timeline.after(world.delay(world.swarm.heartbeat), setattr, leader, "is_down", False)

    def depose(self) -> None:
        """Let another one be elected, which the former leader hears of later."""
        leader, world = self.leader, self._world
        others = [node for node in self.nodes.values() if node is not leader and not node.is_down]
        if leader is not None and others and not others[0].paused:
            reign = world.log.reign
            world.fault("deposed", str(leader))
            others[0].lead()
            self._plan_to_find_out(leader, reign)

    def pause(self) -> None:
        """Let the leader stand still; another one is elected meanwhile, or not."""
        leader, world = self.leader, self._world
        if leader is not None and not leader.paused:
            leader.paused = True
            world.timeline.after(world.delay(world.swarm.session_timeout), leader.resume)
            if world.rng.random() < 0.5:
                world.timeline.after(world.delay(world.swarm.heartbeat), self.depose)

    def lack_replicas(self) -> None:
        """Let nothing be written for a while."""
        world = self._world
        if not world.log.lacks_replicas:
            world.log.lacks_replicas = True
            world.timeline.after(world.delay(world.swarm.session_timeout), self.have_replicas)

    def have_replicas(self) -> None:
        """Let everything be written again."""
        self._world.log.lacks_replicas = False

    def heal(self) -> None:
        """Let everybody be there, and know who leads; let all be written."""
        self._world.log.flapping = 0.0
        self.have_replicas()
        for node in self.nodes.values():
            node.is_down = False
            node.resume()
        if self.leader is None:
            self._elect(self._world.log.reign)
        for node in self.nodes.values():
            if not node.leads:
                node.find_out(node.reign)
        self.streams_changed()

    def streams_changed(self) -> None:
        """Tell everybody of streams, also who was deposed."""
        for node in self.nodes.values():
            node.streams_changed()

    def _elect(self, reign: int) -> None:
        world = self._world
        if world.log.reign != reign or self.leader is not None:
            return
        able = [node for node in self.nodes.values() if not (node.is_down or node.paused)]
        if able:
            world.rng.choice(able).lead()
        else:
            world.timeline.after(world.delay(world.swarm.heartbeat), self._elect, reign)

    def _plan_to_find_out(self, node: CoordinatorNode, reign: int) -> None:
        world = self._world
        world.timeline.after(world.delay(world.swarm.session_timeout), self._find_out, node, reign)

    def _find_out(self, node: CoordinatorNode, reign: int) -> None:
        if node.paused:
            self._plan_to_find_out(node, reign)
        else:
            node.find_out(reign)
