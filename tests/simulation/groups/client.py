"""One member as a client library would run it: what it reads, what it gives up, how it comes back."""

from collections.abc import Callable

from consumer_groups.coordinator_events import (
    Assignment,
    Beat,
    CommitAllowed,
    CommitRequested,
    ConnectionId,
    Join,
    Joined,
    Leave,
    Refusal,
    Release,
)
from consumer_groups.group_state import ClientId
from consumer_groups.partitions import Claim, Generation, InstanceId, MemberId, Partition
from envelope.errors import InstanceFenced
from envelope.types import StreamName
from tests.simulation.groups.world import Message, World
from tests.simulation.violation import Violation

_NO_MEMBER = MemberId("")


class Client:
    """A consumer: it joins, reads what it is assigned, commits, and comes back when it was fenced."""

    def __init__(
        self,
        world: World,
        name: str,
        connection: ConnectionId,
        instance_id: InstanceId | None,
        send: Callable[[Message], None],
    ) -> None:
        self.client = ClientId(name)
        self.streams = self._draw_streams(world)
        self.reads: dict[Partition, Generation] = {}
        self.member_id: MemberId | None = None
        self.stopped = self.leaving = False
        self.acked: set[Partition] = set()
        """What it has committed for since it got it."""
        self._world, self._connection, self._instance_id, self._send = world, connection, instance_id, send
        self._request = self._commit_request = 0
        self._commits: dict[int, tuple[Partition, ...]] = {}
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

    def join_anew(self) -> None:
        """Subscribe, to something else perhaps."""
        self._request += 1
        self._join_waits = True
        self.ask_again()

    def subscribe(self) -> None:
        """Read other streams."""
        self.streams = self._draw_streams(self._world)
        self.join_anew()

    def leave(self) -> None:
        """Stop, and say so until that is heard."""
        self.leaving = True
        self.reads.clear()
        self.ask_again()

    def ask_again(self) -> None:
        """Send once more what was not answered."""
        if self.stopped:
            return
        if self.leaving:
            if self.member_id is None:
                self.stopped = True
            else:
                self._send(Leave(self._connection, self.member_id, self._instance_id))
        elif self._join_waits:
            self._send(self._join())
        elif self.member_id is not None and self._given_up & self._asked:
            claims = tuple(sorted(self._given_up & self._asked))
            self._send(Release(self._connection, self.member_id, claims, self._instance_id))

    def beat(self) -> Beat | None:
        """Return what its connection's heartbeat says of it."""
        if self.stopped or self.leaving or self.member_id is None:
            return None
        return Beat(self.member_id, self._heard, self._instance_id)

    def joined(self, answer: Joined) -> None:
        """Hear the answer to a join."""
        if answer.request != self._request or self.stopped or not self._join_waits:
            return
        self._join_waits = False
        if self.member_id != answer.assignment.member_id:
            self.member_id, self._heard = answer.assignment.member_id, Generation(0)
            if self.leaving:
                self.ask_again()
        self.assigned(answer.assignment)

    def assigned(self, assignment: Assignment) -> None:
        """Hear what it owns."""
        if assignment.member_id != self.member_id or assignment.generation < self._heard:
            return
        if self.stopped or self.leaving:
            return
        self._heard = assignment.generation
        keeps = {claim.partition: claim.generation for claim in assignment.keeps}
        gives_up = {claim.partition: claim.generation for claim in assignment.gives_up}
        for partition, generation in list(self.reads.items()):
            if generation not in (keeps.get(partition), gives_up.get(partition)):
                self._lose(partition, generation)
        for claim in assignment.keeps:
            if claim not in self._given_up and claim.partition not in self.reads:
                self.reads[claim.partition] = claim.generation
        self._given_up &= {*assignment.keeps, *assignment.gives_up}
        for claim in assignment.gives_up:
            if claim not in self._asked:
                self._be_asked(claim)
        # What it gave up and is to keep now has to be said too, or nobody would read it.
        self._asked = {*assignment.gives_up, *self._given_up}

    def refused(self, refusal: Refusal, member_id: MemberId | None) -> None:
        """Hear that it is no member any more."""
        if self.stopped or member_id != (self.member_id or _NO_MEMBER):
            return
        self._former = tuple(Claim(*item) for item in sorted(self.reads.items()))
        self.reads.clear()
        self._asked.clear()
        self._given_up.clear()
        self.acked.clear()
        self.member_id = None
        if refusal.error is InstanceFenced or self.leaving:
            self.stopped = True
        else:
            self.join_anew()

    def join_refused(self, request: int, refusal: Refusal) -> None:
        """Hear that a join was in vain."""
        if request == self._request and self._join_waits:
            self.refused(refusal, self.member_id or _NO_MEMBER)

    def left(self, member_id: MemberId) -> None:
        """Hear that it is gone."""
        if self.leaving and member_id == self.member_id:
            self.stopped = True
            self._world.checks.client_is_over(self.client)

    def commit(self) -> None:
        """Commit for something that it reads."""
        if self.stopped or self.leaving or self.member_id is None or not self.reads:
            return
        reads = sorted(self.reads)
        lacking = [one for one in reads if one not in self.acked]
        partitions = tuple(lacking or [self._world.rng.choice(reads)])
        if self._world.rng.random() < 0.02:
            partitions = tuple(sorted(self._world.wanted(self.streams))[-1:])  # perhaps somebody else's
        self._send_commit(partitions)

    def committed(self, answer: CommitAllowed) -> None:
        """Hear that a commit is durable."""
        partitions = self._commits.get(answer.request, ()) if answer.member_id == self.member_id else ()
        self.acked |= {partition for partition in partitions if partition in self.reads}

    def _send_commit(self, partitions: tuple[Partition, ...]) -> None:
        assert self.member_id is not None
        self._commit_request += 1
        self._send(
            CommitRequested(
                self._connection,
                self.member_id,
                self._commit_request,
                self._heard,
                partitions,
                self._instance_id,
            )
        )
        self._commits[self._commit_request] = partitions

    def _join(self) -> Join:
        swarm = self._world.swarm
        return Join(
            connection=self._connection,
            client=self.client,
            request=self._request,
            fresh_id=_NO_MEMBER,
            streams=self.streams,
            session_timeout_ns=swarm.session_timeout,
            rebalance_timeout_ns=swarm.rebalance_timeout,
            member_id=self.member_id,
            instance_id=self._instance_id,
            assignor=swarm.assignor,
            owned=self._former,
        )

    def _lose(self, partition: Partition, generation: Generation) -> None:
        """It had to stop without having been asked: only deleted streams may do that to a reader."""
        if partition.stream in self._world.partitions and partition not in self._world.checks.deleted:
            raise Violation(f"{self.client} had to stop reading {partition} of generation {generation}")
        del self.reads[partition]
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
        if self.reads.get(claim.partition) == claim.generation:
            self._send_commit((claim.partition,))
            del self.reads[claim.partition]
            self.acked.discard(claim.partition)
        self._given_up.add(claim)
        self.ask_again()

    @staticmethod
    def _draw_streams(world: World) -> frozenset[StreamName]:
        names = world.swarm.streams
        return frozenset(world.rng.sample(names, world.rng.randint(1, len(names))))
