"""Where the nodes' sockets are; TLS and the token with which one admits a reader."""

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from pydantic import SecretStr

from envelope.errors import InvalidConfig, RequestError

SocketTls = ssl.SSLContext | str | Path | Literal[True]
"""A context; the PEM file of the authorities to trust; or True, which trusts the system's authorities."""


Address = tuple[str, int]


class AddressBook(Protocol):
    """Where the nodes' sockets are."""

    async def addresses(self) -> Sequence[Address]:
        """Return host and port of each node; may raise a typed error."""


class FixedAddresses:
    """Nodes that were named by the application."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._addresses = tuple(addresses)

    async def addresses(self) -> Sequence[Address]:
        """Return the fixed addresses."""
        return self._addresses


def parse_address(text: str) -> Address:
    """Return host and port of ``"host:port"`` or ``"[v6]:port"``.

    Raises:
        RequestError: anything else.
    """
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 1 << 16:
        raise RequestError(f"{text!r} is not a socket address: write host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def address_text(address: Address) -> str:
    """Return what `parse_address` reads."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True, slots=True)
class ReadPass:
    """Nodes, and the right to read there, for a client without NATS; the ticket is in no repr."""

    sockets: tuple[str, ...]
    """``host:port`` of nodes."""
    ticket: SecretStr | None
    """None: the nodes want none."""


@dataclass(frozen=True, slots=True)
class SocketAccess:
    """Shown to every node that is connected to; token and ticket are in no repr."""

    token: SecretStr | None = None
    ticket: SecretStr | None = None
    """One that somebody else has asked for; it cannot be renewed here."""
    tls: ssl.SSLContext | None = None
    """None: no TLS. There is no falling back from one to the other."""
    short_circuit: bool = True
    """Whether files of a node on this machine may be read where they lie."""


def socket_access(
    token: str | None, tls: SocketTls | None, ticket: SecretStr | None = None, *, short_circuit: bool = True
) -> SocketAccess:
    """Return how to be let in.

    Raises:
        InvalidConfig: a file of authorities that is not there, or not one.
    """
    return SocketAccess(None if token is None else SecretStr(token), ticket, _context(tls), short_circuit)


def _context(tls: SocketTls | None) -> ssl.SSLContext | None:
    if tls is None or isinstance(tls, ssl.SSLContext):
        return tls
    authorities = None if tls is True else str(tls)
    try:
        return ssl.create_default_context(cafile=authorities)
    except OSError as error:  # an SSLError is one
        raise InvalidConfig(f"no authorities to trust in {authorities}: {error}") from None


def tls_problem(error: ssl.SSLError) -> str:
    """Return in words why TLS with a node failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    reason = error.reason or str(error)
    explained = {
        "WRONG_VERSION_NUMBER": "it does not speak TLS",
        "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it wants a client certificate",
        "TLSV1_ALERT_UNKNOWN_CA": "it does not trust our certificate",
    }
    return explained.get(reason, f"TLS failed: {reason}")
