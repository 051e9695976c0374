"""What goes wrong around the voters, and how each of it ends."""

from collections.abc import Callable, Mapping

from envelope.types import NodeId
from metadata.raft.events import PeerDisconnected, TransferLeadership
from tests.simulation.raft.link_faults import LinkFaults
from tests.simulation.raft.swarm import ELECTION_TIMEOUT
from tests.simulation.raft.voter import Voter
from tests.simulation.raft.world import World


class Faults:
    """Draws a fault of the world's kinds every now and then, until it is told to heal."""

    def __init__(self, world: World, voters: Mapping[NodeId, Voter]) -> None:
        self._world, self._voters = world, voters
        self._left_dead: list[Voter] = []
        self._links = links = LinkFaults(world, list(voters))
        self._kinds: dict[str, Callable[[], None]] = {
            "kill_one": lambda: self._kill(self._some(1)),
            "kill_leader": lambda: self._kill(self._leaders()),
            "kill_majority": lambda: self._kill(self._some(len(voters) // 2 + 1)),
            "kill_all": lambda: self._kill(list(voters.values())),
            "pause_one": lambda: self._pause(self._some(1)),
            "pause_leader": lambda: self._pause(self._leaders()),
            "isolate_one": lambda: self._isolate("isolate_one", self._some(1)),
            "isolate_leader": lambda: self._isolate("isolate_leader", self._leaders()),
            "halves": lambda: self._isolate("halves", self._some(len(voters) // 2)),
            "one_way": links.cut_one_way,
            "ring": links.cut_to_ring,
            "bridge": links.cut_to_bridge,
            "clog": links.clog,
            "disconnect": self._disconnect,
            "clock_jump": self._clock_jump,
            "transfer": self._transfer,
            "slow_disk": self._slow_disk,
        }
        self._plan()

    @property
    def left_dead(self) -> list[NodeId]:
        """The voters that are not to be started again for now."""
        return [voter.name for voter in self._left_dead]

    def died(self, name: NodeId) -> None:
        """A process ended: its peers notice sooner or later, and it is started again."""
        self._voters[name].kill()
        world, rng = self._world, self._world.rng
        for other in self._voters.values():
            if other.name != name and rng.random() < 0.7:
                world.network.break_off(name, other.name)
                world.timeline.after(self._links.moment() // 20, self._notice_death, other, name)
        world.timeline.after(self._links.moment(), self._restart, self._voters[name])

    def end(self) -> None:
        """End every fault; but sometimes a minority stays dead until `revive`."""
        world, rng = self._world, self._world.rng
        # A voter without a disk asks all others, and a new group begins once all of it are there.
        minority = (len(self._voters) - 1) // 2 if world.disk_losses.all_vote else 0
        some = self._some(rng.randint(1, minority) if minority and rng.random() < 0.3 else 0)
        self._left_dead = some if world.can_do_without([voter.name for voter in some]) else []
        self._note("healed", f"without {' '.join(voter.name for voter in self._left_dead) or 'exception'}")
        world.network.heal()
        world.network.weather.calm(ELECTION_TIMEOUT // 50)
        self._kill(self._left_dead)
        for voter in self._voters.values():
            if voter.paused:
                voter.resume()
            self._restart(voter)
            voter.writer.calm()

    def revive(self) -> None:
        """Start those too that stayed dead."""
        dead, self._left_dead = self._left_dead, []
        for voter in dead:
            self._note("revived", voter.name)
            self._restart(voter)

    # --- chance --------------------------------------------------------------------------------------

    def _plan(self) -> None:
        interval = self._world.swarm.fault_interval
        self._world.timeline.after(int(2 * self._world.rng.random() * interval), self._strike)

    def _strike(self) -> None:
        if not self._world.healing:
            self._kinds[self._world.rng.choice(self._world.swarm.faults)]()
            self._plan()

    def _some(self, count: int) -> list[Voter]:
        return self._world.rng.sample(list(self._voters.values()), count)

    def _leaders(self) -> list[Voter]:
        return [voter for voter in self._voters.values() if voter.leading]

    def _note(self, kind: str, text: str) -> None:
        self._world.trace.fault(self._world.timeline.now, f"{kind} {text}", kind)

    # --- processes -----------------------------------------------------------------------------------

    def _kill(self, victims: list[Voter]) -> None:
        for victim in victims:
            if victim.alive:
                self._note("kill", victim.name)
                self.died(victim.name)

    def _restart(self, voter: Voter) -> None:
        if not voter.alive and voter not in self._left_dead:
            lost = None if self._world.healing else self._world.disk_losses.lose(voter.name)
            if lost is not None:
                self._note("disk_lost", voter.name)
                self._world.checks.disk_lost(voter.name, lost)
            voter.start()
            if self._world.healing:
                voter.writer.calm()

    def _notice_death(self, voter: Voter, dead: NodeId) -> None:
        voter.tell(PeerDisconnected(dead, refused=not self._voters[dead].alive))

    def _pause(self, victims: list[Voter]) -> None:
        for victim in victims:
            if victim.alive and not victim.paused:
                self._note("pause", victim.name)
                victim.pause()
                self._world.timeline.after(self._links.moment(), self._resume, victim)

    def _resume(self, voter: Voter) -> None:
        if voter.paused:
            self._note("resume", voter.name)
            voter.resume()

    def _clock_jump(self) -> None:
        victim, by = self._some(1)[0], self._links.moment()
        self._note("clock_jump", f"{victim.name} by {by / 1e6:.0f} ms")
        victim.timer.jump(by)
        victim.plan()

    def _slow_disk(self) -> None:
        victim = self._some(1)[0]
        self._note("slow_disk", victim.name)
        victim.writer.disk.slowness = self._world.rng.choice((3, 30))

    def _transfer(self) -> None:
        for leader in self._leaders():
            others = [name for name in self._voters if name != leader.name]
            if others:
                target = self._world.rng.choice(others)
                self._note("transfer", f"{leader.name} to {target}")
                leader.tell(TransferLeadership(target))

    def _disconnect(self) -> None:
        if len(self._voters) == 1:
            return
        one, other = self._some(2)
        self._note("disconnect", f"{one.name}-{other.name}")
        self._world.network.break_off(one.name, other.name)
        one.tell(PeerDisconnected(other.name, refused=not other.alive))
        other.tell(PeerDisconnected(one.name, refused=not one.alive))

    def _isolate(self, kind: str, victims: list[Voter]) -> None:
        self._links.isolate(kind, [victim.name for victim in victims])
