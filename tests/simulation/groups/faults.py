"""What goes wrong with a group, and how all of it ends."""

from collections.abc import Callable

from consumer_groups.assignment.partitions import GroupName, Partition
from consumer_groups.coordinator.events import ConnectionId, NewCursor
from consumer_groups.cursors import CursorPosition
from consumer_groups.shard.events import DeleteGroup, ResetCursors
from tests.simulation.groups.coordinators import Coordinators
from tests.simulation.groups.cursor_checks import OPERATOR, Origin
from tests.simulation.groups.messages import Question
from tests.simulation.groups.process import Process
from tests.simulation.groups.world import PLACES, World

_OPERATOR = "operator"


class Faults:
    """Draws a fault of the run's kinds every now and then, until it is told to end."""

    def __init__(self, world: World, coordinators: Coordinators, processes: dict[str, Process]) -> None:
        self._world, self._coordinators, self._processes = world, coordinators, processes
        self._asked = 0
        world.network.connect(_OPERATOR, lambda told: None)
        self._kinds: dict[str, Callable[[], None]] = {
            "kill_process": self._kill,
            "pause_process": self._pause,
            "leave": self._leave,
            "twin": self._twin,
            "fail_over": coordinators.in_a_write(coordinators.fail_over),
            "depose": coordinators.in_a_write(coordinators.depose),
            "pause_coordinator": coordinators.pause,
            "lack_replicas": coordinators.lack_replicas,
            "reset_group": self._reset,
            "delete_group": self._delete_group,
            "cut": lambda: self._cut(both=True),
            "cut_one_way": lambda: self._cut(both=False),
            "add_partitions": self._add,
            "delete_stream": self._delete_stream,
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
        self._coordinators.heal()
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
        connection = process.connection
        process.kill()
        if self._world.rng.random() < 0.5:
            for place in PLACES:
                self._world.network.break_off(process.name, place)
                self._coordinators.nodes[place].closed(connection)
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

    def _cut(self, *, both: bool) -> None:
        links = [(self._some().name, self._world.rng.choice(PLACES))]
        if not both and self._world.rng.random() < 0.5:
            links = [(other, one) for one, other in links]
        if both:
            links.append((links[0][1], links[0][0]))
        self._world.network.block(*links)
        self._world.timeline.after(self._length(), self._world.network.unblock, *links)

    def _add(self) -> None:
        self._world.streams.add_partitions()
        self._coordinators.streams_changed()

    def _delete_stream(self) -> None:
        self._world.streams.delete()
        if self._world.rng.random() < 0.7:  # or it is made again before anybody hears of it
            self._coordinators.streams_changed()

    def _reset(self) -> None:
        """Let an operator set the group's cursors to something before, by force."""
        world, group = self._world, self._some().group
        streams, checks = world.streams, world.cursor_checks[group]
        self._asked += 1
        metadata = Origin(OPERATOR, self._asked, is_reset=True).text()

        def somewhere(partition: Partition) -> NewCursor:
            offset = world.rng.randint(0, checks.delivered_end(partition))
            return NewCursor(partition, CursorPosition(offset, streams.life(partition.stream), metadata))

        cursors = tuple(map(somewhere, sorted(streams.wanted(frozenset(streams.counts)))))
        if cursors:
            self._operate(group, ResetCursors(cursors, force=True))

    def _delete_group(self) -> None:
        self._operate(self._some().group, DeleteGroup(force=True))

    def _operate(self, group: GroupName, request: ResetCursors | DeleteGroup) -> None:
        question = Question(ConnectionId("operator#0"), None, self._asked, group, request)
        self._world.network.send((_OPERATOR, self._world.coordinator()), question)

    def _subscribe(self) -> None:
        process = self._some()
        for client in process.clients:
            if not (process.paused or client.stopped or client.leaving):
                client.subscribe()
