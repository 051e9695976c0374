"""What one link is subscribed to: kept while the connection is down, replayed by nats-py or subscribed anew.

nats-py replays its own subscriptions when it reconnects. It knows nothing of what was asked for while it was
not connected, and a fresh client knows nothing at all: `Routes.subscribe_all` gives each what it lacks.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from envelope.errors import JetstreamError, StreamOffline, Unauthorized
from jetstream.node.nats_seam import Deliver, block_of, subscription_id, unsubscribe

NOT_YET: Final = "its subject is not subscribed yet"
_NO_MORE: Final = "its subject is not subscribed any more"


@dataclass(slots=True, eq=False)
class Route:
    """One subscription that survives reconnects and fresh clients.

    Attributes:
        problem: why no messages come even while the link is connected; None if they do.
        client: the client that has the subscription, or is about to.
    """

    subject: str
    queue: str
    deliver: Deliver
    problem: JetstreamError | None = field(default_factory=lambda: StreamOffline(NOT_YET))
    client: Client | None = None
    subscription: Subscription | None = None

    @property
    def key(self) -> tuple[str, str]:
        """Subject and queue as nats-py tells them in errors: in lower case."""
        return self.subject.lower(), self.queue.lower()


class Routes:
    """The routes of one link; used on the loop's thread.

    Attributes:
        by_sid: who gets the messages of each subscription of the present client.
    """

    def __init__(self) -> None:
        self._routes: dict[tuple[str, str], list[Route]] = {}
        self.by_sid: dict[int, Deliver] = {}

    def __iter__(self) -> Iterator[Route]:
        return chain.from_iterable(self._routes.values())

    def __contains__(self, route: Route) -> bool:
        return route in self._routes.get(route.key, ())

    def add(self, route: Route) -> None:
        """Want ``route`` from now on."""
        self._routes.setdefault(route.key, []).append(route)

    def remove(self, route: Route) -> Subscription | None:
        """Want ``route`` no longer; return the subscription to end, None if there is none (yet)."""
        if route in self:
            routes = self._routes[route.key]
            routes.remove(route)
            if not routes:
                del self._routes[route.key]
        subscription = route.subscription
        route.client = route.subscription = None
        route.problem = StreamOffline(_NO_MORE)
        return subscription

    def renew(self) -> dict[int, Deliver]:
        """Begin with a fresh client: it has no subscription and counts its own anew; return its `by_sid`."""
        self.by_sid = {}
        for route in self:
            route.client = route.subscription = None
        self.forget_denials()
        return self.by_sid

    async def subscribe_all(self, client: Client) -> bool:
        """Subscribe every route that ``client`` lacks; tell whether there was one."""
        lacked = False
        for route in tuple(self):
            lacked |= await self.subscribe(route, client)
        return lacked

    async def subscribe(self, route: Route, client: Client) -> bool:
        """Subscribe unless ``client`` has it, or is about to; tell whether it lacked it."""
        if route.client is client or route not in self:
            return False

        async def one(message: Msg) -> None:
            # Reached only through nats-py's stock parser: the batching one delivers by sid.
            route.deliver(block_of(message))

        route.client, by_sid = client, self.by_sid
        subscription = await client.subscribe(
            route.subject, queue=route.queue, cb=one, pending_msgs_limit=0, pending_bytes_limit=0
        )
        if route.client is client:
            route.subscription = subscription
            by_sid[subscription_id(subscription)] = route.deliver
        else:  # removed while nats-py's queue of commands was full
            await unsubscribe(client, subscription)
        return True

    def deny(self, subject: str, queue: str) -> list[Route]:
        """Note that the server refuses or has ended a subscription; return whose."""
        denied = self._routes.get((subject.lower(), queue.lower()), [])
        for route in denied:
            route.problem = Unauthorized(f"NATS does not let this node subscribe to {route.subject!r}")
        return denied

    def forget_denials(self) -> None:
        """The next connection says anew what it denies."""
        for route in self:
            if isinstance(route.problem, Unauthorized):
                route.problem = None
