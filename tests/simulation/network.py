"""Links between named places: late, lost, twice, out of order, one way, clogged.

A link is an ordered pair of names. Every link stands for one connection in one direction.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Generic, TypeVar

from tests.simulation.timeline import Timeline

MessageT = TypeVar("MessageT")
Link = tuple[str, str]


@dataclass(slots=True)
class Weather:
    """How the links behave; probabilities from 0 to 1, times in virtual ns."""

    delay_mean: int
    loss: float = 0.0
    twice: float = 0.0
    straggling: float = 0.0
    """Share of the messages that arrive after up to ``straggling_max`` instead."""
    straggling_max: int = 0
    in_order: bool = False
    """As one connection delivers; only what comes twice or straggles is out of order then."""

    def calm(self, delay_mean: int) -> None:
        """Let everything arrive once, in order and within ``delay_mean`` or less from now on."""
        self.delay_mean = min(self.delay_mean, delay_mean)
        self.loss = self.twice = self.straggling = 0.0
        self.in_order = True


class Network(Generic[MessageT]):
    """Carries messages; who receives them is `connect`'s business."""

    def __init__(self, timeline: Timeline, rng: Random, weather: Weather) -> None:
        self._timeline, self._rng, self.weather = timeline, rng, weather
        self._receivers: dict[str, Callable[[MessageT], None]] = {}
        self._blocked: dict[Link, int] = {}
        self._clogged: dict[Link, list[MessageT]] = {}
        self._connection: dict[Link, int] = {}
        self._newest_arrival: dict[Link, int] = {}
        self.lost: Callable[[Link], None] = lambda link: None
        """Is told of every message that a blocked link loses."""

    def connect(self, name: str, receive: Callable[[MessageT], None]) -> None:
        """Deliver what is for ``name`` to ``receive``."""
        self._receivers[name] = receive

    def send(self, link: Link, message: MessageT) -> None:
        """Carry ``message`` over ``link``, if the weather likes."""
        rng, weather = self._rng, self.weather
        if link in self._blocked:
            self.lost(link)
            return
        if rng.random() < weather.loss:
            return
        if weather.straggling and rng.random() < weather.straggling:
            self._carry(link, message, int(rng.random() * weather.straggling_max))
        else:
            self._carry_in_order(link, message)
        if weather.twice and rng.random() < weather.twice:
            self._carry(link, message, self._delay() * 2)

    def block(self, *links: Link) -> None:
        """Lose what is sent over, or arrives on, each link until it was unblocked as often."""
        for link in links:
            self._blocked[link] = self._blocked.get(link, 0) + 1

    def unblock(self, *links: Link) -> None:
        """Undo one `block`."""
        for link in links:
            left = self._blocked.pop(link, 0) - 1
            if left > 0:
                self._blocked[link] = left

    def is_blocked(self, link: Link) -> bool:
        """Tell whether what is sent over ``link`` is lost."""
        return link in self._blocked

    def clog(self, link: Link) -> None:
        """Keep what arrives on ``link`` until it is unclogged."""
        self._clogged.setdefault(link, [])

    def unclog(self, link: Link) -> None:
        """Deliver what was kept, at once and in order."""
        for message in self._clogged.pop(link, ()):
            self._timeline.after(0, self._deliver, link, message, self._connection.get(link, 0))

    def break_off(self, one: str, other: str) -> None:
        """Lose everything that is under way between two, in both directions."""
        for link in ((one, other), (other, one)):
            self._connection[link] = self._connection.get(link, 0) + 1
            if link in self._clogged:
                self._clogged[link] = []

    def break_all(self) -> None:
        """Lose everything that is under way."""
        for number, one in enumerate(self._receivers):
            for other in list(self._receivers)[number + 1 :]:
                self.break_off(one, other)

    def heal(self) -> None:
        """End every partition and clog."""
        self._blocked.clear()
        for link in list(self._clogged):
            self.unclog(link)

    def _delay(self) -> int:
        return int(-math.log(1.0 - self._rng.random()) * self.weather.delay_mean)

    def _carry_in_order(self, link: Link, message: MessageT) -> None:
        delay = self._delay()
        if self.weather.in_order:
            arrival = max(self._timeline.now + delay, self._newest_arrival.get(link, 0))
            self._newest_arrival[link] = arrival
            delay = arrival - self._timeline.now
        self._carry(link, message, delay)

    def _carry(self, link: Link, message: MessageT, delay: int) -> None:
        self._timeline.after(delay, self._deliver, link, message, self._connection.get(link, 0))

    def _deliver(self, link: Link, message: MessageT, connection: int) -> None:
        if connection != self._connection.get(link, 0):
            return
        if link in self._blocked:
            self.lost(link)
        elif link in self._clogged:
            self._clogged[link].append(message)
        else:
            self._receivers[link[1]](message)
