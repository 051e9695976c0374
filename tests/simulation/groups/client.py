"""One member as a client library would run it: what it reads, what it gives up, how it comes back."""

from typing import Protocol

from consumer_groups.assignment.partitions import (
    Claim,
    Generation,
    GroupName,
    InstanceId,
    MemberId,
    Partition,
)
from consumer_groups.coordinator.events import (
    Assignment,
    Beat,
    ConnectionId,
    Join,
    Leave,
    Left,
    Release,
    StoreCursors,
)
from consumer_groups.coordinator.group_state import ClientId
from consumer_groups.shard.events import (
    Answer,
    CursorsCommitted,
    CursorsFound,
    GroupRequest,
    LookUpCursors,
    RequestFailed,
)
from envelope.errors import Fenced, JetstreamError
from envelope.group_errors import CursorBehind, IllegalGeneration, InstanceFenced
from envelope.types import StreamName
from tests.simulation.groups.reading import Readings
from tests.simulation.groups.world import World
from tests.simulation.violation import Violation

_NO_MEMBER = MemberId("")


class Home(Protocol):
    """The process of a client, as it sees it."""

    @property
    def group(self) -> GroupName: ...

    @property
    def connection(self) -> ConnectionId: ...

    def ask(self, client: str, request: GroupRequest) -> int:
        """Send a request to the coordinator; return its number."""
        ...


class Client:
    """A consumer: it joins, reads what it is assigned, commits, and comes back when it was fenced."""

    def __init__(self, world: World, name: str, instance_id: InstanceId | None, home: Home) -> None:
        self.client = ClientId(name)
        self.streams = _draw_streams(world)
        self.readings = Readings(world, home.group)
        self.member_id: MemberId | None = None
        self.stopped = self.leaving = False
        self.acked: set[Partition] = set()
        """What it has committed for up to the end since it got it."""
        self._world, self._instance_id, self._home = world, instance_id, home
        self._request = self._commit_request = 0
        self._heard = Generation(0)
        self._given_up: set[Claim] = set()
        self._asked: set[Claim] = set()
        self._former: tuple[Claim, ...] = ()
        self._join_waits = True
        self.join_anew()

    @property
    def rests(self) -> bool:
        """It is a member, and has nothing to give up."""
        return self.member_id is not None and not self._join_waits and not self._asked

    # --- what it does by itself --------------------------------------------------------------------------

    def join_anew(self) -> None:
        """Subscribe, to something else perhaps."""
        self._request += 1
        self._join_waits = True
        self.ask_again()

    def subscribe(self) -> None:
        """Read other streams."""
        self.streams = _draw_streams(self._world)
        self.join_anew()

    def leave(self) -> None:
        """Stop, and say so until that is heard."""
        self.leaving = True
        self.readings.clear()
        self.ask_again()

    def ask_again(self) -> None:
        """Send once more what was not answered."""
        if self.stopped:
            return
        if self.leaving:
            if self.member_id is None:
                self.stopped = True
            else:
                self._home.ask(self.client, Leave(self._home.connection, self.member_id, self._instance_id))
        elif self._join_waits:
            self._home.ask(
                self.client,
                Join(
                    connection=self._home.connection,
                    client=self.client,
                    request=self._request,
                    fresh_id=_NO_MEMBER,
                    streams=self.streams,
                    session_timeout_ns=self._world.swarm.session_timeout,
                    rebalance_timeout_ns=self._world.swarm.rebalance_timeout,
                    member_id=self.member_id,
                    instance_id=self._instance_id,
                    assignor=self._world.swarm.assignor,
                    owned=self._former,
                ),
            )
        elif self.member_id is not None and self._given_up & self._asked:
            claims = tuple(sorted(self._given_up & self._asked))
            self._home.ask(
                self.client, Release(self._home.connection, self.member_id, claims, self._instance_id)
            )
        self._fetch()

    def beat(self) -> Beat | None:
        """Return what its connection's heartbeat says of it."""
        if self.stopped or self.leaving or self.member_id is None:
            return None
        return Beat(self.member_id, self._heard, self._instance_id)

    def read_and_commit(self) -> None:
        """Read on in all that it reads, and commit for something."""
        if self.stopped or self.leaving or self.member_id is None:
            return
        self.readings.read_on()
        ready = self.readings.ready()
        if not ready:
            return
        world = self._world
        lacking = [one for one in ready if one not in self.acked]
        partitions = lacking or [world.rng.choice(ready)]
        if world.rng.random() < 0.02 and not world.healing:
            partitions = sorted(world.streams.wanted(self.streams))[-1:]  # perhaps somebody else's
        is_reset = world.rng.random() < world.swarm.resets and not world.healing
        if is_reset:
            self.readings.go_back(partitions)
        self._commit(partitions, is_reset=is_reset)

    # --- what it hears -----------------------------------------------------------------------------------

    def hear(self, number: int, request: GroupRequest, answer: Answer) -> None:
        """Hear the answer to something that it has asked."""
        match request, answer:
            case Join(), Assignment():
                self._joined(request, answer)
            case Join(), RequestFailed(error):
                if request.request == self._request and self._join_waits and isinstance(error, Fenced):
                    self.refused(error, self.member_id or _NO_MEMBER)
            case Release(), Assignment():
                self.assigned(answer)
            case Release(), RequestFailed(error):
                self.refused(error, request.member_id)
            case Leave(), Left():
                if self.leaving and request.member_id == self.member_id:
                    self.stopped = True
                    self._world.checks[self._home.group].client_is_over(self.client)
            case _:
                self._hear_of_cursors(number, request, answer)

    def _hear_of_cursors(self, number: int, request: GroupRequest, answer: Answer) -> None:
        match request, answer:
            case StoreCursors(), CursorsCommitted(superseded):
                if not superseded:
                    self._committed(request)
            case StoreCursors(), RequestFailed(error):
                self._world.trace.counts[error.err_code] += 1
                if isinstance(error, CursorBehind) and request.member_id == self.member_id:
                    self.readings.begin_anew([cursor.partition for cursor in request.cursors])
            case LookUpCursors(), CursorsFound(cursors):
                self.readings.found(number, request.partitions, cursors)
            case _:
                pass

    def assigned(self, assignment: Assignment) -> None:
        """Hear what it owns."""
        if assignment.member_id != self.member_id or assignment.generation < self._heard:
            return
        if self.stopped or self.leaving:
            return
        self._heard = assignment.generation
        keeps = {claim.partition: claim.generation for claim in assignment.keeps}
        gives_up = {claim.partition: claim.generation for claim in assignment.gives_up}
        for partition, generation in self.readings.claims():
            if generation not in (keeps.get(partition), gives_up.get(partition)):
                self._lose(partition, generation)
        for claim in assignment.keeps:
            if claim not in self._given_up and claim.partition not in self.readings:
                self.readings.begin(claim)
        self._given_up &= {*assignment.keeps, *assignment.gives_up}
        for claim in assignment.gives_up:
            if claim not in self._asked:
                self._be_asked(claim)
        # What it gave up and is to keep now has to be said too, or nobody would read it.
        self._asked = {*assignment.gives_up, *self._given_up}
        self._fetch()

    def refused(self, error: JetstreamError, member_id: MemberId) -> None:
        """Hear that it is no member any more."""
        if self.stopped or member_id != (self.member_id or _NO_MEMBER) or not isinstance(error, Fenced):
            return
        if isinstance(error, IllegalGeneration):
            return  # one that was deposed says so: it has not heard of the newest
        self._former = tuple(Claim(*each) for each in self.readings.claims())
        self.readings.clear()
        self._asked.clear()
        self._given_up.clear()
        self.acked.clear()
        self.member_id = None
        if isinstance(error, InstanceFenced) or self.leaving:
            self.stopped = True
        else:
            self.join_anew()

    def _joined(self, join: Join, assignment: Assignment) -> None:
        if join.request != self._request or self.stopped or not self._join_waits:
            return
        self._join_waits = False
        if self.member_id != assignment.member_id:
            self.member_id, self._heard = assignment.member_id, Generation(0)
            if self.leaving:
                self.ask_again()
        self.assigned(assignment)

    def _committed(self, commit: StoreCursors) -> None:
        if commit.member_id != self.member_id:
            return
        for partition, place in commit.cursors:
            if partition in self.readings and place.offset == self._world.streams.ends[partition]:
                self.acked.add(partition)

    # --- what follows ------------------------------------------------------------------------------------

    def _fetch(self) -> None:
        wanted = self.readings.to_fetch()
        if wanted and not self.stopped:
            self.readings.asked(self._home.ask(self.client, LookUpCursors(wanted)), wanted)

    def _commit(self, partitions: list[Partition], *, is_reset: bool = False) -> None:
        assert self.member_id is not None
        self._commit_request += 1
        cursors = self.readings.cursors(partitions, self.member_id, self._commit_request, is_reset=is_reset)
        if cursors:
            whose = (self._home.connection, self.member_id, self._commit_request, self._heard)
            self._home.ask(self.client, StoreCursors(*whose, cursors, self._instance_id, is_reset))

    def _lose(self, partition: Partition, generation: Generation) -> None:
        """It had to stop without having been asked: only deleted streams may do that to a reader."""
        if partition.stream in self._world.streams.counts and partition not in self._world.streams.deleted:
            raise Violation(f"{self.client} had to stop reading {partition} of generation {generation}")
        self._stop_reading(partition)

    def _stop_reading(self, partition: Partition) -> None:
        self.readings.end(partition)
        self.acked.discard(partition)

    def _be_asked(self, claim: Claim) -> None:
        world = self._world
        if world.rng.random() < world.swarm.stubborn and not world.healing:
            world.fault("stubborn", f"{self.client} {claim}")
        else:
            world.timeline.after(world.delay(world.swarm.give_up_mean), self._give_up, self.member_id, claim)

    def _give_up(self, member_id: MemberId, claim: Claim) -> None:
        if self.stopped or self.leaving or member_id != self.member_id or claim not in self._asked:
            return
        if claim in self.readings.claims():
            self._commit([claim.partition])
            self._stop_reading(claim.partition)
        self._given_up.add(claim)
        self.ask_again()


def _draw_streams(world: World) -> frozenset[StreamName]:
    names = world.swarm.streams
    return frozenset(world.rng.sample(names, world.rng.randint(1, len(names))))
