"""From the ``[socket]`` settings of a node to what its socket server uses; files are read at the start."""

import logging
import ssl
from pathlib import Path
from typing import Final

from pydantic import SecretStr

from envelope.errors import InvalidConfig
from jetstream.node.config import TOKEN_CHARS_MAX, SocketConfig, SocketTlsConfig
from jetstream.node.socket_server import SocketSettings

_log = logging.getLogger(__name__)

_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})


def socket_settings(config: SocketConfig) -> SocketSettings:
    """Read the certificate and the token; blocks, for the start.

    Raises:
        InvalidConfig: a file that is not there, or is not what it should be.
    """
    token = config.token if config.token_file is None else _token_in(config.token_file)
    tls = None if config.tls is None else server_context(config.tls)
    if token is not None and tls is None and config.host not in _LOOPBACK:
        _log.warning("socket.token travels unencrypted: there is no socket.tls host=%s", config.host)
    return SocketSettings(token=token, tls=tls)


def server_context(config: SocketTlsConfig) -> ssl.SSLContext:
    """Return the server's side of TLS 1.2 and 1.3.

    Raises:
        InvalidConfig: certificate, key or authorities cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION  # TLS 1.2 would let a peer ask for handshakes without end
    try:
        # The password is given because OpenSSL would ask the terminal for that of an encrypted key.
        context.load_cert_chain(config.certificate, config.key, password="")
    except OSError as error:  # an SSLError is one
        raise InvalidConfig(f"socket.tls: {config.certificate} and {config.key}: {error}") from None
    if config.client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(config.client_ca)
        except OSError as error:
            raise InvalidConfig(f"socket.tls.client_ca: {config.client_ca}: {error}") from None
    return context


def _token_in(file: Path) -> SecretStr:
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"socket.token_file: {file}: {type(error).__name__}") from None
    if not 0 < len(token) <= TOKEN_CHARS_MAX:
        raise InvalidConfig(
            f"socket.token_file: {file} holds {len(token)} characters, a token has 1 to {TOKEN_CHARS_MAX}"
        )
    return SecretStr(token)
