"""The guard of the HTTP port: from the ``[http]`` settings of a node to the judgement of a request's token.

Source: RFC 6750 §2.1 (the header field) and §3 (the challenge).
"""

import hmac
import logging
import re
import ssl
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from pydantic import SecretStr

from envelope.errors import InvalidConfig, Unauthorized
from jetstream.node.settings.credentials import server_context, token_in
from jetstream.node.settings.node_config import LOOPBACK, HttpConfig
from jetstream.protocol.rights import Gate, ReaderRights

_log = logging.getLogger(__name__)

_SENDABLE: Final = re.compile(r"[!-~]+")
"""Visible ASCII: everything else would be cut or changed on its way in a header."""


class Credential(Enum):
    """The judgement of what a request shows."""

    MISSING = auto()
    WRONG = auto()
    RIGHT = auto()

    @property
    def challenge(self) -> str:
        """Return the value of ``WWW-Authenticate`` for a request that is refused."""
        error = ', error="invalid_token"' if self is Credential.WRONG else ""
        return f'Bearer realm="jetstream"{error}'


@dataclass(frozen=True, slots=True)
class HttpRights:
    """The rights of a request to ``/v1``."""

    reader: ReaderRights
    """To records."""
    may_ask: bool
    """Whether it may ask for everything but records."""


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """How the port is guarded."""

    token: SecretStr | None = None
    """Of every request that sees more than a probe; None shows everybody everything."""
    tls: ssl.SSLContext | None = None
    """The server's side of TLS; None speaks none."""
    hosts: frozenset[str] = frozenset()
    """Names of the node, in small letters, beside its addresses and ``localhost``."""

    def judge(self, headers: Iterable[tuple[bytes, bytes]]) -> Credential:
        """Judge a request by its headers, whose names are in small letters; the token in constant time."""
        if self.token is None:
            return Credential.RIGHT
        shown = [value for name, value in headers if name == b"authorization"]
        if not shown:
            return Credential.MISSING
        token = _bearer(shown)
        is_right = token is not None and _is_same(token, self.token)
        return Credential.RIGHT if is_right else Credential.WRONG

    def admit(self, headers: Iterable[tuple[bytes, bytes]], gate: Gate) -> HttpRights:
        """Return the rights of a request to ``/v1``.

        The port's token is for questions; it reads records only where the socket asks for nothing. The
        socket's token is for both, a ticket for the stream that it names.

        Raises:
            Unauthorized: the request shows nothing that it needs.
            InvalidTicket: the ticket is not good now.
        """
        is_open = gate.require == "none"
        reader = ReaderRights(gate)
        if self.token is None and is_open:
            reader.sees_all = True
            return HttpRights(reader, may_ask=True)
        credential = _bearer([value for name, value in headers if name == b"authorization"])
        if credential is None:
            wants = "token" if gate.require == "token" else "ticket"
            raise Unauthorized(f"this needs a {wants}: Authorization: Bearer …", wants=wants)
        if _is_same(credential, self.token):
            reader.sees_all = is_open
        elif _is_same(credential, gate.token):
            reader.sees_all = True
        elif gate.require == "token":
            raise Unauthorized("the token is not right")
        else:
            reader.show(SecretStr(credential.decode("latin-1")))
            return HttpRights(reader, may_ask=False)
        return HttpRights(reader, may_ask=True)


def _bearer(shown: Sequence[bytes]) -> bytes | None:
    """Return what the header ``Authorization`` bears; None: it is not there, twice, or another scheme."""
    if len(shown) != 1:
        return None
    scheme, _, credential = shown[0].partition(b" ")
    return credential.strip(b" ") if scheme.lower() == b"bearer" else None


def _is_same(credential: bytes, token: SecretStr | None) -> bool:
    """Compare in a time that does not tell how much of it was right; nothing is the same as no token."""
    return token is not None and hmac.compare_digest(credential, token.get_secret_value().encode())


def http_settings(config: HttpConfig | None) -> HttpSettings:
    """Read the certificate and the token; blocks, for the start. None: there is no port.

    Raises:
        InvalidConfig: a file that is not there, or is not what it should be; a token that no header can have.
    """
    if config is None:
        return HttpSettings()
    setting = "http.token" if config.token_file is None else "http.token_file"
    token = config.token if config.token_file is None else token_in(config.token_file, setting)
    if token is not None and _SENDABLE.fullmatch(token.get_secret_value()) is None:
        raise InvalidConfig(
            f"{setting}: it travels in a header: only visible ASCII characters, and no spaces"
        )
    tls = None if config.tls is None else server_context(config.tls, "http.tls")
    exposed = config.host not in LOOPBACK
    if exposed and token is None and (config.tls is None or config.tls.client_ca is None):
        _log.warning(
            "whoever can connect can see the metrics, and ask for more: no http.token host=%s",
            config.host,
        )
    elif exposed and tls is None:
        _log.warning("http.token travels unencrypted: there is no http.tls host=%s", config.host)
    return HttpSettings(token, tls, frozenset(host.lower() for host in config.hosts))
