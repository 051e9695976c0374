"""One supervised connection to NATS.

nats-py connects, authenticates, discovers and reconnects. It gives up for good on some server errors; the
link then opens a fresh client and subscribes again. Every interruption is told to the owner as a possible
gap.
"""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Final

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from envelope.errors import NoResponders, Unauthorized, UnavailableError
from envelope.urls import shown_url
from jetstream.node.config import NatsConfig, TlsConfig
from jetstream.node.crash import Crash
from jetstream.node.nats_routes import Route, Routes
from jetstream.node.nats_seam import (
    BatchingParser,
    Lost,
    RawPublisher,
    answered,
    cancellable,
    close,
    has_jetstream,
    seam_problem,
    subscription_id,
    unsubscribe,
)
from jetstream.node.nats_watch import LinkWatch, denied_subscription

_log = logging.getLogger(__name__)

_FLUSH_SECONDS: Final = 5.0
_CLOSE_SECONDS: Final = 5.0

Respond = Callable[[Msg], Awaitable[None]]


class NatsLink:
    """One connection to NATS that comes back by itself; ``batching`` installs the batching parser."""

    def __init__(self, config: NatsConfig, watch: LinkWatch, crash: Crash, *, batching: bool = False) -> None:
        self.watch = watch
        self._config = config
        self._crash = crash
        self._batching = batching
        self._client = Client()
        self._publisher = RawPublisher(self._client)
        self._routes = Routes()
        self._settled = False
        self._services: list[tuple[str, str, Respond]] = []
        self._closed = asyncio.Event()
        self._stopping = False

    @property
    def connected(self) -> bool:
        """Whether messages flow now: the server was given every subscription since it was connected."""
        return self._client.is_connected and self._settled

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
        client, by_sid = Client(), self._routes.renew()
        if self._batching:
            problem = seam_problem(client)
            if problem is None:
                BatchingParser(client, by_sid, self._crash)
            else:
                _log.warning("batching parser not used, ingest will be slow: %s", problem)
        self._closed.clear()
        self._settled = False
        self._client = client
        self._publisher = RawPublisher(client)
        await cancellable(
            client.connect(
                **connection_options(self._config),
                name=f"{self._config.name}-{self.watch.role}",
                error_cb=self._on_error,
                disconnected_cb=self._on_disconnected,
                reconnected_cb=self._on_reconnected,
                closed_cb=self._on_closed,
            )
        )
        await self._routes.subscribe_all(client)
        for subject, queue, respond in self._services:
            await client.subscribe(subject, queue, cb=respond)
        await self.confirm()
        self._settled = True
        self.watch.connected(client)

    async def _on_error(self, error: Exception) -> None:
        await self.watch.error(error)
        denied = denied_subscription(error)
        if denied is not None and self._routes.deny(*denied):
            _log.error("subject denied role=%s subject=%s queue=%s runbook=RB-03", self.watch.role, *denied)

    async def _on_disconnected(self) -> None:
        self._settled = False
        self._routes.forget_denials()
        await self.watch.disconnected()

    async def _on_reconnected(self) -> None:
        client = self._client
        try:
            # nats-py has replayed what it had; what was asked for meanwhile it has not.
            if await self._routes.subscribe_all(client):
                await self.confirm()
        except (OSError, nats.errors.Error) as error:
            self.watch.note(error)  # a connection that does not answer is given up by nats-py's own pings
        if client.is_connected:
            self._settled = True
            self.watch.connected(client)

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

    async def subscribe(self, route: Route) -> None:
        """Deliver the messages of ``route`` as blocks; the server has the subscription on return.

        While the connection is down it has it before the link says that it is connected again.

        Raises:
            Unauthorized: the server does not let this connection subscribe to it. It is asked again whenever
                the link connects, until `unsubscribe`.
        """
        self._routes.add(route)
        if self._client.is_connected:
            try:
                await self._routes.subscribe(route, self._client)
                await self.confirm()
            except (OSError, nats.errors.Error) as error:
                self.watch.note(error)  # the connection fell: the next one has the subscription
        if isinstance(route.problem, Unauthorized):
            raise route.problem
        route.problem = None

    async def unsubscribe(self, route: Route) -> None:
        """End the interest; what the server had sent before is still delivered before this returns.

        While the connection is down nothing comes, and no later one has the subscription.
        """
        by_sid = self._routes.by_sid
        subscription = self._routes.remove(route)
        if subscription is None:
            return
        try:
            await unsubscribe(self._client, subscription)
            if self._client.is_connected:
                await self.confirm()
        except (OSError, nats.errors.Error) as error:
            self.watch.note(error)
        finally:
            by_sid.pop(subscription_id(subscription), None)

    async def serve(self, subject: str, respond: Respond, *, queue: str = "") -> None:
        """Call ``respond`` for every message on ``subject``, or for this member's share of a ``queue``'s."""
        self._services.append((subject, queue, respond))
        await cancellable(self._client.subscribe(subject, queue, cb=respond))
        await self.confirm()

    async def confirm(self) -> None:
        """Return when the server has handled everything sent so far (PING/PONG).

        nats-py writes a PING past the commands that wait for its flusher, so that the first answer may be
        older than they are. They are written while it is awaited: the second answer is younger.
        """
        for _ in range(2):
            await answered(self._client, _FLUSH_SECONDS)

    def publish_raw(self, commands: bytes, lost: Lost) -> None:
        """Write ready-made PUB commands; call ``lost``, now or later in this turn, if they cannot be."""
        self._publisher.write(commands, lost)

    def flush_raw(self) -> None:
        """Write what `publish_raw` was given now, not at the end of the loop's turn."""
        self._publisher.flush()

    async def request(self, subject: str, payload: bytes, timeout_seconds: float) -> bytes:
        """Return the answer to a request of our own.

        Raises:
            NoResponders: nobody listens there.
            UnavailableError: nobody answered in time, or the connection is down.
        """
        try:
            return (await cancellable(self._client.request(subject, payload, timeout_seconds))).data
        except nats.errors.NoRespondersError:
            raise NoResponders(f"nobody listens on {subject}") from None
        except (TimeoutError, OSError, nats.errors.Error) as error:
            raise UnavailableError(f"no answer on {subject}: {error!r}") from None

    async def publish(self, subject: str, payload: bytes) -> None:
        """Publish one message; lost if the connection is down, as NATS allows."""
        try:
            await cancellable(self._client.publish(subject, payload))
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


async def delivered(link: NatsLink) -> None:
    """Return when all that the server had sent has been delivered, unless the connection is down."""
    try:
        if link.connected:
            await link.confirm()
    except (OSError, nats.errors.Error) as error:
        link.watch.note(error)


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
