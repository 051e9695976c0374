"""What goes wrong with a group, and how all of it ends."""

from collections.abc import Callable

from consumer_groups.partitions import Partition
from tests.simulation.groups.coordinator_node import CoordinatorNode
from tests.simulation.groups.process import Process
from tests.simulation.groups.world import COORDINATOR, World


class Faults:
    """Draws a fault of the group's kinds every now and then, until it is told to end."""

    def __init__(self, world: World, node: CoordinatorNode, processes: dict[str, Process]) -> None:
        self._world, self._node, self._processes = world, node, processes
        self._kinds: dict[str, Callable[[], None]] = {
            "kill_process": self._kill,
            "pause_process": self._pause,
            "leave": self._leave,
            "twin": self._twin,
            "fail_over": node.fail,
            "pause_coordinator": self._pause_coordinator,
            "cut": lambda: self._cut(both=True),
            "cut_one_way": lambda: self._cut(both=False),
            "add_partitions": self._add,
            "delete_stream": self._delete,
            "subscribe": self._subscribe,
        }
        self._plan()

    def died(self, name: str) -> None:
        """Nothing ends by itself here."""

    def end(self) -> None:
        """End every fault; whoever is dead starts again."""
        world = self._world
        world.fault("healed", "")
        world.network.heal()
        world.network.weather.calm(world.swarm.heartbeat // 20)
        self._node.resume()
        for process in self._processes.values():
            process.resume()
            for client in process.clients:
                client.acked.clear()

    def revive(self) -> None:
        """Nobody stayed dead."""

    def _plan(self) -> None:
        self._world.timeline.after(self._world.delay(self._world.swarm.fault_interval), self._strike)

    def _strike(self) -> None:
        if self._world.healing:
            return
        kind = self._world.rng.choice(self._world.swarm.faults)
        self._world.fault(f"strike_{kind}", "")
        self._kinds[kind]()
        self._plan()

    def _some(self) -> Process:
        return self._world.rng.choice(list(self._processes.values()))

    def _length(self) -> int:
        return self._world.delay(self._world.swarm.session_timeout)

    def _kill(self) -> None:
        process = self._some()
        process.kill()
        if self._world.rng.random() < 0.5:
            self._world.network.break_off(process.name, COORDINATOR)
        self._world.timeline.after(self._length(), self._start, process, process.lives)

    def _start(self, process: Process, life: int) -> None:
        if process.lives == life:
            process.start()

    def _pause(self) -> None:
        process = self._some()
        if not process.paused:
            process.paused = True
            self._world.timeline.after(self._length(), process.resume)

    def _leave(self) -> None:
        process = self._some()
        for client in process.clients:
            if not process.paused:
                client.leave()

    def _twin(self) -> None:
        """Start a process anew while its former life still runs, under another name."""
        process = self._some()
        twin = self._processes.get(f"{process.name}'")
        if twin is not None and twin.is_over and not twin.paused:
            twin.start()

    def _pause_coordinator(self) -> None:
        if not self._node.paused:
            self._node.paused = True
            self._world.timeline.after(self._length(), self._node.resume)

    def _cut(self, *, both: bool) -> None:
        links = [(self._some().name, COORDINATOR)]
        if not both and self._world.rng.random() < 0.5:
            links = [(other, one) for one, other in links]
        if both:
            links.append((COORDINATOR, links[0][0]))
        self._world.network.block(*links)
        self._world.timeline.after(self._length(), self._world.network.unblock, *links)

    def _add(self) -> None:
        world = self._world
        name = world.rng.choice(world.swarm.streams)
        world.partitions[name] = world.partitions.get(name, 0) + world.rng.randint(1, 3)
        self._node.partitions_changed()

    def _delete(self) -> None:
        world = self._world
        name = world.rng.choice(world.swarm.streams)
        count = world.partitions.pop(name, 0)
        world.checks.deleted |= {Partition(name, number) for number in range(count)}
        self._node.partitions_changed((name,))

    def _subscribe(self) -> None:
        process = self._some()
        for client in process.clients:
            if not (process.paused or client.stopped or client.leaving):
                client.subscribe()
