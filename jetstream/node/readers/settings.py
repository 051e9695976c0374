"""From the ``[socket]`` settings of a node to what its socket server uses; files are read at the start."""

import logging
import ssl

from jetstream.node.readers.server import SocketSettings
from jetstream.node.settings.credentials import load_authorities, load_certificate, server_side, token_in
from jetstream.node.settings.node_config import LOOPBACK, SocketConfig, SocketTlsConfig

_log = logging.getLogger(__name__)


def socket_settings(config: SocketConfig) -> SocketSettings:
    """Read the certificate and the token; blocks, for the start.

    Raises:
        InvalidConfig: a file that is not there, or is not what it should be.
    """
    token = config.token if config.token_file is None else token_in(config.token_file, "socket.token_file")
    tls = None if config.tls is None else server_context(config.tls)
    exposed = config.host not in LOOPBACK
    if exposed and token is None and (config.tls is None or config.tls.client_ca is None):
        _log.warning("whoever can connect can read every stream: no socket.token host=%s", config.host)
    elif exposed and tls is None:
        _log.warning("socket.token travels unencrypted: there is no socket.tls host=%s", config.host)
    return SocketSettings(token=token, tls=tls, selection_bytes=config.selection_bytes)


def server_context(config: SocketTlsConfig) -> ssl.SSLContext:
    """Return the server's side of TLS 1.2 and 1.3.

    Raises:
        InvalidConfig: certificate, key or authorities cannot be used.
    """
    context = server_side()
    load_certificate(context, config.certificate, config.key, "socket.tls")
    if config.client_ca is not None:
        load_authorities(context, config.client_ca, "socket.tls.client_ca")
    return context
