"""One publisher: sends values with ids to one stream, several at a time, and retries until answered."""

from dataclasses import dataclass, field
from typing import Final

from tests.simulation.replica.messages import Ack, BusMessage, Publish, Refusal
from tests.simulation.replica.swarm import LEASE, StreamShape
from tests.simulation.replica.world import World

_TIMEOUTS: Final = (LEASE // 4, LEASE // 2, LEASE, 2 * LEASE)
"""How long to wait for the answer to each attempt; the last one holds for all further ones."""
_LAST_WORDS: Final = 2


@dataclass(slots=True)
class _Value:
    name: str
    attempts: list[Publish] = field(default_factory=list)
    refused: set[int] = field(default_factory=set)


class Publisher:
    """Its retries carry the id of the first attempt; it may give up before healing."""

    def __init__(self, world: World, name: str, shape: StreamShape) -> None:
        self._world, self._name, self._stream = world, name, shape.name
        self._window = shape.dedupe_window
        self._count = 0
        self._open: dict[str, _Value] = {}
        self._last_words = _LAST_WORDS
        self.acked = 0
        world.bus.connect(name, self._receive)
        world.timeline.after(self._think(), self._begin)

    @property
    def stream(self) -> str:
        """Name of the stream it publishes to."""
        return self._stream

    @property
    def done(self) -> bool:
        """Whether everything was answered, also what it sends after healing."""
        return not self._open and self._last_words == 0

    def _begin(self) -> None:
        world = self._world
        if self._last_words == 0:
            return
        if len(self._open) < world.swarm.in_flight:
            if world.healing:
                self._last_words -= 1
            self._count += 1
            value = _Value(f"{self._name}-{self._count}")
            self._open[value.name] = value
            self._attempt(value)
        world.timeline.after(self._think(), self._begin)

    def _attempt(self, value: _Value) -> None:
        world = self._world
        publish = Publish(self._name, self._stream, value.name, len(value.attempts) + 1)
        value.attempts.append(publish)
        world.checks.publishing[self._stream].sent(publish)
        world.checks.histories[self._stream].send(self._name, value.name)
        world.bus.publish(publish)
        timeout = _TIMEOUTS[min(publish.attempt, len(_TIMEOUTS)) - 1]
        world.timeline.after(self._patience(timeout), self._timed_out, publish)

    def _timed_out(self, publish: Publish) -> None:
        value = self._open.get(publish.value)
        if value is None or len(value.attempts) != publish.attempt:
            return
        if not self._world.healing and self._world.rng.random() < self._world.swarm.gives_up:
            self._world.trace.counts["given_up"] += 1
            del self._open[publish.value]
        else:
            self._world.trace.counts["retried"] += 1
            self._attempt(value)

    def _receive(self, message: BusMessage) -> None:
        if self._is_deaf():
            return
        if isinstance(message, Ack):
            self._world.checks.publishing[self._stream].heard(message.publish, message.offset)
            self._world.checks.histories[self._stream].acked(message.publish.value, message.offset)
            if self._open.pop(message.publish.value, None) is not None:
                self.acked += 1
        elif isinstance(message, Refusal):
            value = self._open.get(message.publish.value)
            # After healing it insists: then every value must be stored in the end.
            if value is not None and len(value.attempts) == 1 and not self._world.healing:
                del self._open[message.publish.value]

    def _is_deaf(self) -> bool:
        world = self._world
        return bool(self._window) and not world.healing and world.rng.random() < world.swarm.deaf

    def _patience(self, timeout: int) -> int:
        """Return how long to wait: often until the window is nearly over, or is."""
        world = self._world
        if not self._window or world.healing or world.rng.random() < 0.4:
            return timeout
        return int(self._window * world.rng.uniform(0.1, 1.5))

    def _think(self) -> int:
        return self._world.delay(self._world.swarm.think_mean) + 1
