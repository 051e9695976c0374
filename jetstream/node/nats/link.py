"""A supervised connection to NATS.

nats-py connects, authenticates, discovers and reconnects; should it give up for good, the link opens a fresh
client. The link itself subscribes, on every connection anew, and asks again for what the server refuses.
The owner is notified of every interruption as a possible gap.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final

import nats.errors
from nats.aio.client import Client

from envelope.errors import UnavailableError
from envelope.urls import shown_url, user_in
from jetstream.ingest.messages import MessageBlock, Unread
from jetstream.node.nats.errors import is_kept_out
from jetstream.node.nats.parser_seam import (
    BatchingParser,
    RawPublisher,
    Subscriber,
    answered,
    cancellable,
    check_seam,
    close,
    forget_gone_servers,
    has_jetstream,
    publish,
    subscription_id,
    unsubscribe,
)
from jetstream.node.nats.requests import Requests
from jetstream.node.nats.routes import Route, Routes
from jetstream.node.nats.watch import LinkWatch
from jetstream.node.runtime.crash import Crash
from jetstream.node.runtime.task_group import task_group
from jetstream.node.settings.node_config import NatsConfig, TlsConfig

_log = logging.getLogger(__name__)

_FLUSH_SECONDS: Final = 5.0
_CLOSE_SECONDS: Final = 5.0
_SILENT_PINGS: Final = 2
"""PINGs without an answer after which a node says that it hears nothing; nats-py gives up after three."""


@dataclass(frozen=True, slots=True)
class ServiceRequest:
    """A message to a service of this node.

    Attributes:
        subject: bytes that are not UTF-8 replaced.
        reply: where to answer; empty: nowhere.
        headers: the header block, None without one.
        unread_bytes: size of a message that was too large to be read, 0 of others.
    """

    subject: str
    reply: bytes
    payload: bytes
    headers: bytes | None = None
    unread_bytes: int = 0


Respond = Callable[[ServiceRequest], None]


class NatsLink:
    """A connection to NATS that comes back by itself.

    Attributes:
        publish_raw: `RawPublisher.write`, on the present connection.
        flush_raw: `RawPublisher.flush`.
    """

    def __init__(self, config: NatsConfig, watch: LinkWatch, crash: Crash) -> None:
        self.watch = watch
        watch.silent_ns_max = int(_SILENT_PINGS * config.ping_interval.total_seconds() * 1e9)
        self._config = config
        self._crash = crash
        self._client = Client()
        self._publisher = RawPublisher(self._client)
        self.publish_raw = self._publisher.write
        self.flush_raw = self._publisher.flush
        self._routes = Routes(watch.role, watch.dropped, config.max_control_line)
        self._requests = Requests(
            self.subscribe, lambda *message: cancellable(publish(self._client, *message))
        )
        self._shown_urls = ", ".join(shown_url(url) for url in config.urls)
        self._settled = False
        self._closed = asyncio.Event()
        self._stopping = False

    @property
    def connected(self) -> bool:
        """Whether messages flow now: the server was given every subscription since it was connected."""
        return self._client.is_connected and self._settled

    @property
    def refused(self) -> list[Route]:
        """Subscriptions that the server refuses to this connection; they are requested again and again."""
        return self._routes.refused

    @property
    def server_has_jetstream(self) -> bool:
        """Whether the server's own JetStream is enabled: it would answer the same reply subjects."""
        return has_jetstream(self._client)

    async def open(self) -> None:
        """Connect; wait for a server that is not there.

        Raises:
            UnavailableError: a server refuses this node, or there was none in time.
        """
        limit = self._config.start_timeout
        seconds = self._config.connect_timeout.total_seconds() * (len(self._config.urls) + 1)
        reason: Exception = TimeoutError("no answer")
        with suppress(TimeoutError):
            async with asyncio.timeout(None if limit is None else limit.total_seconds()):
                while True:
                    try:
                        async with asyncio.timeout(seconds):  # every server once
                            await self._connect()
                    except (TimeoutError, OSError, nats.errors.Error) as error:
                        reason = error if _is_final(error) else self.watch.reason(error)
                    else:
                        return
                    await self._discard()
                    if _is_final(reason):
                        break
                    self.watch.waiting(self._shown_urls, reason)
                    await asyncio.sleep(self._config.reconnect_wait.total_seconds())
        await self._discard()
        raise UnavailableError(f"cannot connect to NATS at {self._shown_urls}: {self.watch.reason(reason)}")

    async def _connect(self) -> None:
        client = Client()
        check_seam(client)
        by_sid = self._routes.renew(Subscriber(client, self.watch.error))
        parser = BatchingParser(
            client,
            by_sid,
            self._crash,
            self.watch.dropped,
            self._config.max_control_line,
            clock=self.watch.clock,
        )
        self.watch.heard_at = lambda: parser.heard_at
        self._closed.clear()
        self._settled = False
        self._client = client
        self._publisher.client = client
        await cancellable(
            client.connect(
                **connection_options(self._config),
                name=f"{self._config.name}-{self.watch.role}",
                error_cb=partial(_failed, client, self.watch),
                disconnected_cb=self._on_disconnected,
                reconnected_cb=self._on_reconnected,
                closed_cb=self._on_closed,
            )
        )
        await self._routes.subscribe_all(_FLUSH_SECONDS)
        self._settled = True
        self.watch.connected(client)

    async def _on_disconnected(self) -> None:
        self._settled = False
        self._routes.disconnected()
        await self.watch.disconnected()

    async def _on_reconnected(self) -> None:
        client = self._client
        try:
            await self._routes.subscribe_all(_FLUSH_SECONDS)
        except (OSError, nats.errors.Error) as error:
            self.watch.note(error)  # a connection that does not answer is given up by nats-py's own pings
        if client.is_connected:
            self._settled = True
            self.watch.connected(client)

    async def _on_closed(self) -> None:
        self._closed.set()

    async def supervise(self) -> None:
        """Run for the life of the link: replace a client that is closed, ask again for what is refused."""
        async with task_group() as tasks:
            asking = _begun(_ask_again(self, self._routes, self._config.reconnect_wait), tasks)
            while True:
                await self._closed.wait()
                if self._stopping:
                    asking.cancel()
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
        """Subscribe to ``route``; on return the server has the subscription, or refuses it.

        While the connection is down the server has it before the link is connected again. A refused
        subscription is requested again, until `unsubscribe`.
        """
        self._routes.add(route)
        if self._client.is_connected:
            try:
                await self._routes.subscribe((route,), _FLUSH_SECONDS)
            except (OSError, nats.errors.Error) as error:
                self.watch.note(error)  # the connection fell: the next one has the subscription
        if not route.is_refused:
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
        await self.subscribe(Route(subject, queue, partial(_respond_to_each, respond), is_service=True))

    async def confirm(self) -> None:
        """Return when the server has handled everything sent so far (PING/PONG)."""
        await answered(self._client, _FLUSH_SECONDS)

    async def is_heard(self) -> bool:
        """Return whether the server has handled everything sent so far."""
        try:
            await self.confirm()
        except (OSError, nats.errors.Error) as error:
            self.watch.note(error)
            return False
        return True

    async def request(
        self, subject: str, payload: bytes, timeout_seconds: float, header: bytes = b""
    ) -> bytes:
        """Return the answer to a request of our own, see `Requests.ask`."""
        return await self._requests.ask(subject, payload, timeout_seconds, header)

    async def publish(self, subject: bytes, payload: bytes) -> None:
        """Publish one message on a subject of ours or of a request's ``reply``; it may be lost."""
        try:
            await cancellable(publish(self._client, subject, payload))
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
        finally:
            self._routes.closed()


def _is_final(error: Exception) -> bool:
    """Return whether no later attempt can go better: it is about who this node, or the server, is."""
    if isinstance(error, ssl.SSLError):  # others than these are about certificates and keys
        return not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError)
    return is_kept_out(error) or isinstance(error, FileNotFoundError | PermissionError)


async def _failed(client: Client, watch: LinkWatch, error: Exception) -> None:
    """Handle an error of nats-py (``error_cb``): a server that was only heard of is tried once."""
    forget_gone_servers(client)
    await watch.error(error)


async def _ask_again(link: NatsLink, routes: Routes, pause: timedelta) -> None:
    while True:
        await routes.time_to_ask(pause.total_seconds())
        try:
            if link.connected:
                await routes.subscribe_all(_FLUSH_SECONDS)
        except (OSError, nats.errors.Error) as error:
            link.watch.note(error)


def _begun(work: Coroutine[Any, Any, None], tasks: asyncio.TaskGroup) -> asyncio.Task[None]:
    return tasks.create_task(work)


def _respond_to_each(respond: Respond, messages: MessageBlock) -> None:
    for subject, reply, payload, header in zip(
        messages.subjects, messages.replies, messages.payloads, messages.headers, strict=True
    ):
        unread = header.message_bytes if isinstance(header, Unread) else 0
        respond(ServiceRequest(subject.decode(errors="replace"), reply, payload, header, unread))


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
        "skip_subject_validation": True,  # ours is the server's; nats-py refuses to subscribe to some of them
        **_identity(config),
    }
    if config.tls is not None:
        options["tls"] = _tls_context(config.tls)
        options["tls_hostname"] = config.tls.hostname
        options["tls_handshake_first"] = config.tls.handshake_first
    return {name: value for name, value in options.items() if value is not None}


def _identity(config: NatsConfig) -> dict[str, str | None]:
    """Return who this node is to NATS, by its settings or else by its URLs."""
    named = {
        "user": config.user,
        "password": config.password.get_secret_value() if config.password else None,
        "token": config.token.get_secret_value() if config.token else None,
        "nkeys_seed_str": config.nkey_seed.get_secret_value() if config.nkey_seed else None,
        "nkeys_seed": str(config.nkey_seed_file) if config.nkey_seed_file else None,
        "user_credentials": str(config.credentials) if config.credentials else None,
    }
    return {**named} if any(named.values()) else {**user_in(config.urls)}


def _tls_context(tls: TlsConfig) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(tls.ca) if tls.ca else None)
    if tls.certificate is not None:
        context.load_cert_chain(str(tls.certificate), str(tls.key))
    return context
