"""A process with some members on one connection: it is killed, stands still, and starts again."""

from consumer_groups.coordinator_events import (
    Answer,
    Assigned,
    CommitAllowed,
    CommitRefused,
    ConnectionId,
    Heartbeat,
    HeartbeatAnswered,
    Joined,
    JoinRefused,
    Left,
    MemberRefused,
)
from consumer_groups.partitions import InstanceId
from tests.simulation.groups.client import Client
from tests.simulation.groups.world import COORDINATOR, Message, World


class Process:
    """One life after the other under one name."""

    def __init__(self, world: World, name: str, instance_of: str) -> None:
        """Begin; ``instance_of``: its static members are the instances of that name."""
        self._world, self.name, self._instance_of = world, name, instance_of
        self.lives = 0
        self.clients: list[Client] = []
        self.paused = False
        self._waiting: list[Message] = []
        world.network.connect(name, self._receive)

    @property
    def connection(self) -> ConnectionId:
        return ConnectionId(f"{self.name}#{self.lives}")

    def start(self) -> None:
        """Begin a life, with new clients."""
        world = self._world
        self.lives += 1
        self.paused = False
        self._waiting.clear()
        self.clients = [
            Client(
                world,
                f"{self.connection}.{number}",
                self.connection,
                InstanceId(f"{self._instance_of}.{number}") if world.swarm.static else None,
                self._send,
            )
            for number in range(world.swarm.clients_each)
        ]
        self._heartbeat(self.lives)
        self._commit(self.lives)

    def kill(self) -> None:
        """End without a word."""
        self.lives += 1
        self.clients = []
        self.paused = False

    def resume(self) -> None:
        """Go on as if nothing had been: a zombie, if it was long."""
        self.paused = False
        waiting, self._waiting = self._waiting, []
        for message in waiting:
            self._receive(message)

    @property
    def is_over(self) -> bool:
        """All of its clients have stopped for good."""
        return all(client.stopped for client in self.clients)

    def _send(self, message: Message) -> None:
        self._world.network.send((self.name, COORDINATOR), message)

    def _heartbeat(self, life: int) -> None:
        if life != self.lives:
            return
        world = self._world
        if not self.paused:
            beats = tuple(beat for client in self.clients if (beat := client.beat()) is not None)
            if beats:
                self._send(Heartbeat(self.connection, beats))
            for client in self.clients:
                client.ask_again()
        world.timeline.after(world.swarm.heartbeat, self._heartbeat, life)

    def _commit(self, life: int) -> None:
        if life != self.lives:
            return
        world = self._world
        if not self.paused:
            for client in self.clients:
                client.commit()
        world.timeline.after(world.delay(world.swarm.commit_mean), self._commit, life)

    def _receive(self, message: Message) -> None:
        if self.paused:
            self._waiting.append(message)
        elif getattr(message, "connection", None) == self.connection:
            self._hear(message)  # type: ignore[arg-type] # the coordinator sends answers

    def _hear(self, answer: Answer) -> None:
        if isinstance(answer, CommitRefused):
            self._world.trace.counts[answer.refusal.error.err_code] += 1
        for client in self.clients:
            if isinstance(answer, Joined | JoinRefused):
                _hear_of_join(client, answer)
            else:
                _hear(client, answer)


def _hear_of_join(client: Client, answer: Joined | JoinRefused) -> None:
    if answer.client != client.client:
        return
    if isinstance(answer, Joined):
        client.joined(answer)
    else:
        client.join_refused(answer.request, answer.refusal)


def _hear(client: Client, answer: Answer) -> None:
    match answer:
        case Assigned(_, assignment):
            client.assigned(assignment)
        case HeartbeatAnswered(_, assignments, refused):
            for assignment in assignments:
                client.assigned(assignment)
            for member_id, refusal in refused:
                client.refused(refusal, member_id)
        case MemberRefused(_, member_id, refusal):
            client.refused(refusal, member_id)
        case Left(_, member_id):
            client.left(member_id)
        case CommitAllowed():
            client.committed(answer)
        case _:
            pass
