"""The subscriptions of a link: requested on every connection, and again while they are refused."""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import nats.errors
from nats.aio.subscription import Subscription

from envelope.errors import JetstreamError, StreamOffline, SubscriptionRefused, Unauthorized
from envelope.limits import CONTROL_LINE_BYTES_MAX
from jetstream.ingest.subject_filter import SubjectFilter
from jetstream.node.nats.errors import Refusal
from jetstream.node.nats.parser_seam import Deliver, DropKind, Dropped, Subscriber, subscription_id

_log = logging.getLogger(__name__)

REFUSALS: Final = (Unauthorized, SubscriptionRefused)
"""The problems of a route that the server does not let the node have."""

NOT_YET: Final = "its subject is not subscribed yet"
_NO_MORE: Final = "its subject is not subscribed any more"
_ASKED_AT_ONCE: Final = 256
_SID_BYTES_MAX: Final = 20
_PAUSE_S_MAX: Final = 30.0


@dataclass(slots=True, eq=False)
class Route:
    """A subscription that survives reconnects and fresh clients.

    Attributes:
        deliver: gets its messages.
        is_service: requests or answers come on it; no stream reports its problem.
        problem: why no messages come even while the link is connected; None if they do.
        subscription: of the present client.
        asked: the answer of the present connection's server, None if it was not asked, or refuses.
    """

    subject: str
    queue: str
    deliver: Deliver
    is_service: bool = False
    problem: JetstreamError | None = field(default_factory=lambda: StreamOffline(NOT_YET))
    subscription: Subscription | None = None
    asked: "asyncio.Future[bool] | None" = None

    @property
    def is_refused(self) -> bool:
        """Whether the server does not let the node have it."""
        return isinstance(self.problem, REFUSALS)


class Routes:
    """The routes of one link; used on the loop's thread.

    Attributes:
        by_sid: who gets the messages of each subscription of the present client.
    """

    def __init__(
        self,
        role: str,
        dropped: Dropped = lambda _kind, _number: None,
        max_control_line: int = CONTROL_LINE_BYTES_MAX,
    ) -> None:
        """Begin without routes.

        Args:
            role: of the link, for the log.
            dropped: notified of messages whose subject the pattern of their subscription does not match.
            max_control_line: of the server; a longer subscription would cost the connection.
        """
        self._role = role
        self._dropped = dropped
        self._max_control_line = max_control_line
        self._routes: dict[Route, None] = {}
        self._subscriber: Subscriber | None = None
        self.by_sid: dict[int, Deliver] = {}
        self._some_refused = asyncio.Event()
        self._place_freed = asyncio.Event()
        self._pause_s = 0.0

    def __iter__(self) -> Iterator[Route]:
        return iter(tuple(self._routes))

    @property
    def refused(self) -> list[Route]:
        """Those that the server refuses now."""
        return [route for route in self if route.is_refused]

    def add(self, route: Route) -> None:
        """Want ``route`` from now on."""
        self._routes[route] = None

    def remove(self, route: Route) -> Subscription | None:
        """Want ``route`` no longer; return the subscription to end, None if there is none."""
        self._routes.pop(route, None)
        self._place_freed.set()
        subscription, route.subscription, route.asked = route.subscription, None, None
        route.problem = StreamOffline(_NO_MORE)
        if self._subscriber is not None and subscription is not None:
            self._subscriber.forget(subscription)
        return subscription

    def renew(self, subscriber: Subscriber) -> dict[int, Deliver]:
        """Begin with a fresh client: it has no subscription and counts its own anew; return its `by_sid`."""
        self.disconnected()
        self.closed()
        self._subscriber, self.by_sid = subscriber, {}
        for route in self:
            route.subscription = None
        return self.by_sid

    def disconnected(self) -> None:
        """Forget what the server has, and what it refuses: the next connection is asked for everything."""
        for route in self:
            route.asked = None
            if route.is_refused:
                route.problem = None
            if self._subscriber is not None and route.subscription is not None:
                self._subscriber.withdraw(route.subscription)

    def closed(self) -> None:
        """End what a closed client does not know of."""
        if self._subscriber is not None:
            self._subscriber.end()

    async def time_to_ask(self, shortest_s: float) -> None:
        """Return when it is time to ask once more for what is refused: seldom, or when a place is free."""
        if not self.refused:
            self._some_refused.clear()
            await self._some_refused.wait()
            self._pause_s = 0.0
        pause_s = max(self._pause_s, shortest_s)
        self._pause_s = min(2 * pause_s, max(shortest_s, _PAUSE_S_MAX))
        await asyncio.sleep(shortest_s)
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s - shortest_s):
                await self._place_freed.wait()
        self._place_freed.clear()

    async def subscribe_all(self, seconds: float) -> None:
        """Ask for every route that the server does not have; return when it has answered, see `subscribe`."""
        lacking = [route for route in self if route.asked is None]
        for at in range(0, len(lacking), _ASKED_AT_ONCE):
            await self.subscribe(lacking[at : at + _ASKED_AT_ONCE], seconds)

    async def subscribe(self, routes: Sequence[Route], seconds: float) -> None:
        """Ask for ``routes`` unless that was done; on return the server has them, or refuses.

        Raises:
            nats.errors.Error: no answer in so many seconds, or no connection.
        """
        wanted = [route for route in routes if route in self._routes and not self._is_too_long(route)]
        answers = [self._ask(route) if route.asked is None else route.asked for route in wanted]
        if answers and (await asyncio.wait(answers, timeout=seconds))[1]:
            raise nats.errors.FlushTimeoutError

    def _is_too_long(self, route: Route) -> bool:
        """Refuse a route ourselves for which a server would end the connection, again and again."""
        is_too_long = (
            len(f"{route.subject} {route.queue} ".encode()) + _SID_BYTES_MAX > self._max_control_line
        )
        if is_too_long:
            self._refuse(route, Refusal("subject and queue are too long for a control line", is_denial=False))
        return is_too_long

    def _ask(self, route: Route) -> "asyncio.Future[bool]":
        subscriber = self._subscriber
        assert subscriber is not None, "a link has connected before it subscribes"
        if route.subscription is None:
            route.subscription = subscriber.subscription(route.subject, route.queue)
            dropped = partial(self._dropped, DropKind.SUBJECT)
            subjects = SubjectFilter(route.subject, route.deliver, dropped)
            self.by_sid[subscription_id(route.subscription)] = subjects.receive
        route.asked = subscriber.ask(route.subscription, partial(self._refuse, route))
        route.asked.add_done_callback(partial(self._answered, route))
        return route.asked

    def _refuse(self, route: Route, refusal: Refusal) -> None:
        """Note that the server refuses or has ended a subscription."""
        problem: JetstreamError = SubscriptionRefused(
            f"NATS refuses the subscription to {route.subject!r}: {refusal.reason}"
        )
        if refusal.is_denial:
            problem = Unauthorized(f"NATS does not let this node subscribe to {route.subject!r}")
        if str(problem) != str(route.problem):  # not once more for every time that it is asked in vain
            text = "subscription refused role=%s subject=%s queue=%s error=%s runbook=RB-03"
            _log.error(text, self._role, route.subject, route.queue, problem)
        route.problem, route.asked = problem, None
        self._some_refused.set()

    def _answered(self, route: Route, answer: "asyncio.Future[bool]") -> None:
        if route.asked is not answer:
            return  # it was refused, or ended, or the connection was lost
        if route.is_refused:
            _log.info(
                "subscription taken role=%s subject=%s queue=%s", self._role, route.subject, route.queue
            )
        route.problem = None
