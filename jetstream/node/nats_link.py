"""One supervised connection to NATS.

nats-py connects, authenticates, discovers and reconnects. It gives up for good on some server errors; the
link then opens a fresh client and subscribes again. Every interruption is told to the owner as a possible
gap.
"""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from envelope.errors import Unauthorized, UnavailableError
from envelope.urls import shown_url
from jetstream.node.config import NatsConfig, TlsConfig
from jetstream.node.crash import Crash
from jetstream.node.nats_seam import (
    BatchingParser,
    Deliver,
    RawPublisher,
    block_of,
    close,
    has_jetstream,
    seam_problem,
    subscription_id,
)
from jetstream.node.nats_watch import LinkWatch

_log = logging.getLogger(__name__)

_FLUSH_SECONDS: Final = 5.0
_CLOSE_SECONDS: Final = 5.0

Respond = Callable[[Msg], Awaitable[None]]


@dataclass(slots=True, eq=False)
class Route:
    """One subscription that survives reconnects and fresh clients."""

    subject: str
    queue: str
    deliver: Deliver
    subscription: Subscription | None = None


class NatsLink:
    """One connection to NATS that comes back by itself; ``batching`` installs the batching parser."""

    def __init__(self, config: NatsConfig, watch: LinkWatch, crash: Crash, *, batching: bool = False) -> None:
        self.watch = watch
        self._config = config
        self._crash = crash
        self._batching = batching
        self._client = Client()
        self._publisher = RawPublisher(self._client)
        self._routes: list[Route] = []
        self._by_sid: dict[int, Deliver] = {}
        self._services: list[tuple[str, Respond]] = []
        self._closed = asyncio.Event()
        self._stopping = False

    @property
    def connected(self) -> bool:
        """Whether messages flow now."""
        return self._client.is_connected

    @property
    def server_has_jetstream(self) -> bool:
        """Whether the server's own JetStream is enabled: it would answer the same reply subjects."""
        return has_jetstream(self._client)

    async def open(self) -> None:
        """Connect.

        Raises:
            UnavailableError: no server took the connection in time, with the last reason.
        """
        try:
            async with asyncio.timeout(self._config.connect_timeout.total_seconds() * 2):
                await self._connect()
        except (TimeoutError, OSError, nats.errors.Error) as error:
            await self._discard()
            reason = self.watch.refusal or self.watch.last_error or error
            urls = ", ".join(shown_url(url) for url in self._config.urls)
            raise UnavailableError(f"cannot connect to NATS at {urls}: {reason}") from None

    async def _connect(self) -> None:
        client = Client()
        if self._batching:
            problem = seam_problem(client)
            if problem is None:
                BatchingParser(client, self._by_sid, self._crash)
            else:
                _log.warning("batching parser not used, ingest will be slow: %s", problem)
        self._closed.clear()
        self._by_sid.clear()  # a fresh client counts its subscriptions anew
        self._client = client
        self._publisher = RawPublisher(client)
        await client.connect(**self._options())
        for route in self._routes:
            await self._subscribe(route)
        for subject, respond in self._services:
            await client.subscribe(subject, cb=respond)
        await self.confirm()
        self.watch.connected(client)

    def _options(self) -> dict[str, Any]:
        watch = self.watch
        return {
            **connection_options(self._config),
            "name": f"{self._config.name}-{watch.role}",
            "error_cb": watch.error,
            "disconnected_cb": watch.disconnected,
            "reconnected_cb": self._on_reconnected,
            "closed_cb": self._on_closed,
        }

    async def _on_reconnected(self) -> None:
        self.watch.connected(self._client)

    async def _on_closed(self) -> None:
        self._closed.set()

    async def supervise(self) -> None:
        """Run for the life of the link: replace a client that nats-py closed for good."""
        while True:
            await self._closed.wait()
            if self._stopping:
                return
            self.watch.lost()
            _log.warning("nats client closed, opening a fresh one role=%s", self.watch.role)
            try:
                await self._connect()
            except (TimeoutError, OSError, nats.errors.Error) as error:
                self.watch.note(error)
                await self._discard()
                self._closed.set()
                await asyncio.sleep(self._config.reconnect_wait.total_seconds())

    async def subscribe(self, subject: str, queue: str, deliver: Deliver) -> Route:
        """Deliver every message on ``subject`` as blocks; the server has the subscription on return.

        Raises:
            Unauthorized: the server does not let this connection subscribe to ``subject``.
        """
        route = Route(subject, queue, deliver)
        self._routes.append(route)
        if self._client.is_connected:
            await self._subscribe(route)
            await self.confirm()
            if self.watch.was_denied(subject):
                await self.unsubscribe(route)
                raise Unauthorized(f"NATS does not let this node subscribe to {subject!r}")
        return route

    async def _subscribe(self, route: Route) -> None:
        async def one(message: Msg) -> None:
            # Reached only through nats-py's stock parser: the batching one delivers by sid.
            route.deliver(block_of(message))

        route.subscription = await self._client.subscribe(
            route.subject, queue=route.queue, cb=one, pending_msgs_limit=0, pending_bytes_limit=0
        )
        self._by_sid[subscription_id(route.subscription)] = route.deliver

    async def unsubscribe(self, route: Route) -> None:
        """End the interest; what the server had sent before is still delivered before this returns."""
        self._routes.remove(route)
        subscription, route.subscription = route.subscription, None
        if subscription is None or not self._client.is_connected:
            return
        try:
            await subscription.unsubscribe()
            await self.confirm()
        except (OSError, nats.errors.Error) as error:
            self.watch.note(error)
        finally:
            self._by_sid.pop(subscription_id(subscription), None)

    async def serve(self, subject: str, respond: Respond) -> None:
        """Call ``respond`` for every message on ``subject`` (the request API)."""
        self._services.append((subject, respond))
        await self._client.subscribe(subject, cb=respond)
        await self.confirm()

    async def confirm(self) -> None:
        """Return when the server has handled everything sent so far (PING/PONG).

        nats-py writes a PING past the commands that wait for its flusher, so that the first answer may be
        older than they are. They are written while it is awaited: the second answer is younger.
        """
        for _ in range(2):
            await self._client.flush(timeout=_FLUSH_SECONDS)  # type: ignore[arg-type]  # annotated int, used as seconds

    def publish_raw(self, commands: bytes) -> bool:
        """Write ready-made PUB commands; False if they could not be handed over."""
        return self._publisher.write(commands)

    def flush_raw(self) -> None:
        """Write what `publish_raw` was given now, not at the end of the loop's turn."""
        self._publisher.flush()

    async def publish(self, subject: str, payload: bytes) -> None:
        """Publish one message; lost if the connection is down, as NATS allows."""
        try:
            await self._client.publish(subject, payload)
        except (OSError, nats.errors.Error) as error:
            self.watch.note(error)

    async def close(self) -> None:
        """Leave NATS; what was written before is flushed if the server still answers."""
        self._stopping = True
        self.watch.ending()
        self._publisher.flush()
        try:
            if self._client.is_connected:
                await self.confirm()
        except (OSError, nats.errors.Error) as error:
            self.watch.note(error)
        await self._discard()
        self._closed.set()

    async def _discard(self) -> None:
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await close(self._client)
        except (TimeoutError, OSError, nats.errors.Error) as error:
            self.watch.note(error)


def connection_options(config: NatsConfig) -> dict[str, Any]:
    """Return nats-py's connect arguments for our settings; secrets leave their wrapper only here."""
    options: dict[str, Any] = {
        "servers": list(config.urls),
        "max_reconnect_attempts": -1,
        "connect_timeout": config.connect_timeout.total_seconds(),
        "reconnect_time_wait": config.reconnect_wait.total_seconds(),
        "ping_interval": config.ping_interval.total_seconds(),
        "user": config.user,
        "password": config.password.get_secret_value() if config.password else None,
        "token": config.token.get_secret_value() if config.token else None,
        "nkeys_seed_str": config.nkey_seed.get_secret_value() if config.nkey_seed else None,
        "nkeys_seed": str(config.nkey_seed_file) if config.nkey_seed_file else None,
        "user_credentials": str(config.credentials) if config.credentials else None,
    }
    if config.tls is not None:
        options["tls"] = _tls_context(config.tls)
        options["tls_hostname"] = config.tls.hostname
        options["tls_handshake_first"] = config.tls.handshake_first
    return {name: value for name, value in options.items() if value is not None}


def _tls_context(tls: TlsConfig) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(tls.ca) if tls.ca else None)
    if tls.certificate is not None:
        context.load_cert_chain(str(tls.certificate), str(tls.key))
    return context
