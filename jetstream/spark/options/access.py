"""How driver and executors reach the cluster: from options, and pickled with what goes to executors."""

import logging
import ssl
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, Self

from nats.aio.client import RawCredentials
from pydantic import SecretStr

from envelope.errors import InvalidConfig, InvalidSubject, RequestError
from envelope.spark_errors import InvalidOption
from envelope.subjects import validated_subject
from envelope.urls import shown_url
from jetstream.client.blocking.client import BlockingClient, connect_blocking
from jetstream.client.connection import JetstreamClient, connect
from jetstream.client.nodes.socket_access import ReadPass, parse_address
from jetstream.spark.options.option_names import lowered, names_of, option, parsed
from jetstream.spark.options.option_values import flag, words_of
from metadata.stream_config import API_PREFIX_DEFAULT

_log = logging.getLogger(__name__)

_CREDENTIALS_MARK: Final = "-----BEGIN NATS USER JWT"
"""What the contents of a credentials file begin with; a path does not."""

Authorities = str
"""The path of a PEM file, or ``system``."""


def _text(_option: str, text: str) -> str:
    return text


def _secret(_option: str, text: str) -> SecretStr:
    return SecretStr(text)


def _subject(option: str, text: str) -> str:
    try:
        return validated_subject(text)
    except InvalidSubject as error:
        raise InvalidOption(f"{option}: {error.description}") from None


def _servers(option: str, text: str) -> tuple[str, ...]:
    return words_of(option, text, shown_url)


def _addresses(option: str, text: str) -> tuple[str, ...]:
    addresses = words_of(option, text)
    for address in addresses:
        if "://" in address:  # which may have a password
            raise InvalidOption(f"{option}: host:port of nodes, not a URL: those of NATS are in servers")
        try:
            parse_address(address)
        except RequestError as error:
            raise InvalidOption(f"{option}: {error.description}") from None
    return addresses


@dataclass(frozen=True, slots=True)
class NatsIdentity:
    """The client's identity on NATS: at most one kind of credentials."""

    user: str | None = option({"nats.user": _text}, None)
    password: SecretStr | None = option({"nats.password": _secret}, None)
    token: SecretStr | None = option({"nats.token": _secret}, None)
    credentials: SecretStr | None = option({"nats.credentials": _secret}, None)
    """The path of a credentials file, or its contents."""
    nkey_seed: SecretStr | None = option({"nats.nkeySeed": _secret}, None)
    """The seed itself."""
    inbox_prefix: str | None = option({"nats.inboxPrefix": _subject}, None)
    """Where answers come; None: at ``_INBOX``."""

    def __repr__(self) -> str:
        return f"NatsIdentity({self.user or 'nobody'})"

    def connect_options(self) -> dict[str, Any]:
        """Return nats-py's options."""
        found: dict[str, object | None] = {
            "user": self.user,
            "password": _revealed(self.password),
            "token": _revealed(self.token),
            "nkeys_seed_str": _revealed(self.nkey_seed),
            "user_credentials": _credentials(self.credentials),
            "inbox_prefix": self.inbox_prefix,
        }
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """All that a client needs; nothing secret is in its repr."""

    servers: tuple[str, ...] = option({"servers": _servers}, ())
    """URLs of NATS; may hold a password."""
    sockets: tuple[str, ...] = option({"sockets": _addresses}, ())
    """``host:port`` of nodes, to be asked for the others instead of NATS."""
    token: SecretStr | None = option({"token": _secret}, None)
    """The token that the nodes' sockets ask of readers."""
    tls_ca: Authorities | None = option({"tls.ca": _text}, None)
    """Read over TLS, trusting these; None: without TLS."""
    nats: NatsIdentity = NatsIdentity()
    nats_tls_ca: Authorities | None = option({"nats.tls.ca": _text}, None)
    short_circuit_reads: bool = option({"shortCircuitReads": flag}, default=True)
    """Read the files of a node on the same machine where they lie."""
    api_prefix: str = option({"apiPrefix": _text}, API_PREFIX_DEFAULT)
    read_pass: ReadPass | None = None
    """From the driver, for a task that has no NATS to ask for its own."""

    def __repr__(self) -> str:
        shown = [*map(shown_url, self.servers), *self.sockets]
        return f"ClusterAccess({', '.join(shown)})"

    @classmethod
    def from_options(
        cls, options: Mapping[str, str], *, publishes: bool = False
    ) -> tuple[Self, dict[str, str]]:
        """Return the access, and the options that are not about it, by their names in lower case.

        Args:
            options: names in any case.
            publishes: NATS is needed.

        Raises:
            InvalidOption: neither servers nor sockets, an address or a flag that is none, or options that
                contradict each other.
        """
        rest = lowered(options)
        given = {name: rest.pop(name.lower()).strip() for name in cls.option_names() if name.lower() in rest}
        _check_whole(given, publishes=publishes)
        texts = lowered(given)
        return cls(nats=NatsIdentity(**parsed(NatsIdentity, texts)), **parsed(cls, texts)), rest

    @classmethod
    def option_names(cls) -> tuple[str, ...]:
        """Return the names of the options that say how the cluster is reached."""
        return (*names_of(cls), *names_of(NatsIdentity))

    @classmethod
    def nats_option_names(cls) -> tuple[str, ...]:
        """Return the names of the options that say how NATS is reached."""
        return ("servers", "nats.tls.ca", *names_of(NatsIdentity))

    def without_nats(self) -> Self:
        """Return the access without all that is for NATS."""
        return replace(self, servers=(), nats=NatsIdentity(), nats_tls_ca=None)

    def passed(self, read_pass: ReadPass) -> Self:
        """Return the access of a task that has no NATS, with what the driver gives it."""
        named = replace(read_pass, sockets=self.sockets or read_pass.sockets)
        return replace(self.without_nats(), read_pass=named)

    def open(self) -> AbstractContextManager[BlockingClient]:
        """Return a client for a ``with`` block, which connects at its beginning and closes at its end.

        Raises:
            ConnectionLost: NATS cannot be reached; raised by the block.
            InvalidConfig: a file that is not there, or not what it should be.
        """
        return connect_blocking(*self.servers, **self._connect_options())

    def connect(self) -> AbstractAsyncContextManager[JetstreamClient]:
        """Return the same for an ``async with`` block."""
        return connect(*self.servers, **self._connect_options())

    def _connect_options(self) -> dict[str, Any]:
        return {
            "socket": self.read_pass or self.sockets or None,
            "socket_token": _revealed(self.token),
            "socket_tls": _authorities(self.tls_ca),
            "short_circuit_reads": self.short_circuit_reads,
            "api_prefix": self.api_prefix,
            **self._nats_options(),
        }

    def _nats_options(self) -> dict[str, Any]:
        options = {"error_cb": _log_complaint, **self.nats.connect_options()}
        authorities = _authorities(self.nats_tls_ca)
        if authorities is None:
            return options
        try:
            context = ssl.create_default_context(cafile=None if authorities is True else authorities)
        except OSError as error:  # an SSLError is one
            raise InvalidConfig(f"nats.tls.ca: no authorities to trust in {authorities}: {error}") from None
        return options | {"tls": context}


def _check_whole(texts: Mapping[str, str], *, publishes: bool) -> None:
    for name, value in texts.items():
        if not value:
            raise InvalidOption(f"{name} is empty")
    if publishes and "servers" not in texts:
        raise InvalidOption("servers: to publish, the URL of a NATS server: nats://host:4222")
    if "servers" not in texts and "sockets" not in texts:
        raise InvalidOption("servers or sockets: the URL of a NATS server, or host:port of a node")
    ways = [
        name for name in ("nats.user", "nats.token", "nats.credentials", "nats.nkeySeed") if name in texts
    ]
    if len(ways) > 1:
        raise InvalidOption(f"one way to authenticate to NATS, not {' and '.join(ways)}")
    if ("nats.user" in texts) != ("nats.password" in texts):
        raise InvalidOption("nats.user and nats.password belong together")
    of_nats = [*ways, *(name for name in ("nats.tls.ca", "nats.inboxPrefix") if name in texts)]
    if "servers" not in texts and of_nats:
        raise InvalidOption(f"{of_nats[0]} is for NATS, and servers does not say where it is")


async def _log_complaint(error: Exception) -> None:
    """Log an error of nats-py: a denial is raised where it was caused, and often met otherwise."""
    is_denial = "permissions violation" in str(error).lower()
    _log.log(logging.INFO if is_denial else logging.WARNING, "NATS: %s", error)


def _revealed(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()


def _credentials(secret: SecretStr | None) -> object | None:
    text = _revealed(secret)
    return RawCredentials(text) if text is not None and text.startswith(_CREDENTIALS_MARK) else text


def _authorities(named: Authorities | None) -> str | Path | Literal[True] | None:
    return True if named is not None and named.lower() == "system" else named
