"""A process with some members on one connection: it is killed, stands still, and starts again."""

from consumer_groups.assignment.partitions import GroupName, InstanceId
from consumer_groups.coordinator.events import ConnectionId
from consumer_groups.shard.events import GroupRequest, HeartbeatAnswer, RequestFailed
from envelope.errors import NotLeader
from tests.simulation.groups.client import Client
from tests.simulation.groups.messages import Heartbeat, Message, Question, Told
from tests.simulation.groups.world import World

_SILENCE = 4
"""After so many heartbeats without any answer it asks who coordinates."""


class Process:
    """One life after the other under one name."""

    def __init__(self, world: World, name: str, group: GroupName, instance_of: str) -> None:
        """Begin; ``instance_of``: its static members are the instances of that name."""
        self._world, self.name, self.group, self._instance_of = world, name, group, instance_of
        self.lives = 0
        self.clients: list[Client] = []
        self.paused = False
        self._waiting: list[Message] = []
        self._coordinator = world.coordinator()
        self._asked = self._heard_at = 0
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
        self._find_coordinator()
        self.clients = [
            Client(
                world,
                f"{self.connection}.{number}",
                InstanceId(f"{self._instance_of}.{number}") if world.swarm.static else None,
                self,
            )
            for number in range(world.swarm.clients_each)
        ]
        self._heartbeat(self.lives)
        self._read(self.lives)

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

    def ask(self, client: str | None, body: GroupRequest | Heartbeat) -> int:
        """Send something to the coordinator, or who is believed to be that; return its number."""
        self._asked += 1
        question = Question(self.connection, client, self._asked, self.group, body)
        self._world.network.send((self.name, self._coordinator), question)
        return self._asked

    def _find_coordinator(self) -> None:
        self._coordinator, self._heard_at = self._world.coordinator(), self._world.now

    def _heartbeat(self, life: int) -> None:
        if life != self.lives:
            return
        world, each = self._world, self._world.swarm.heartbeat
        if not self.paused:
            if world.now > self._heard_at + _SILENCE * each:
                self._find_coordinator()
            beats = tuple(beat for client in self.clients if (beat := client.beat()) is not None)
            if beats:
                self.ask(None, Heartbeat(beats, world.rng.choice((0, each // 2, 2 * each))))
            for client in self.clients:
                client.ask_again()
        world.timeline.after(each, self._heartbeat, life)

    def _read(self, life: int) -> None:
        if life != self.lives:
            return
        world = self._world
        if not self.paused:
            for client in self.clients:
                client.read_and_commit()
        world.timeline.after(world.delay(world.swarm.commit_mean), self._read, life)

    def _receive(self, message: Message) -> None:
        if self.paused:
            self._waiting.append(message)
        elif isinstance(message, Told) and message.question.connection == self.connection:
            self._hear(message)

    def _hear(self, told: Told) -> None:
        self._heard_at = self._world.now
        question, answer = told.question, told.answer
        if isinstance(answer, RequestFailed) and isinstance(answer.error, NotLeader):
            self._find_coordinator()
        if isinstance(question.body, Heartbeat):
            if isinstance(answer, HeartbeatAnswer):
                self._hear_news(answer)
            return
        for client in self.clients:
            if client.client == question.client:
                client.hear(question.number, question.body, answer)

    def _hear_news(self, news: HeartbeatAnswer) -> None:
        for client in self.clients:
            for _, assignment in news.assignments:
                client.assigned(assignment)
            for _, member_id, refusal in news.refused:
                if member_id == client.member_id:
                    client.refused(refusal.as_error(), member_id)
