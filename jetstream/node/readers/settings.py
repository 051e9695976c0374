"""From the ``[socket]`` settings of a node to what its socket server uses; files are read at the start."""

import logging
from datetime import timedelta

from jetstream.node.readers.server import SocketSettings
from jetstream.node.settings.credentials import server_context, token_in
from jetstream.node.settings.node_config import LOOPBACK, SocketConfig

_log = logging.getLogger(__name__)


def socket_settings(config: SocketConfig) -> SocketSettings:
    """Read the certificate and the token; blocks, for the start.

    Raises:
        InvalidConfig: a file that is not there, or is not what it should be.
    """
    token = config.token if config.token_file is None else token_in(config.token_file, "socket.token_file")
    require = config.require or ("none" if token is None else "token")
    tls = None if config.tls is None else server_context(config.tls, "socket.tls")
    exposed = config.host not in LOOPBACK
    if exposed and require == "none" and (config.tls is None or config.tls.client_ca is None):
        _log.warning("whoever can connect can read every stream: socket.require is none host=%s", config.host)
    elif exposed and require != "none" and tls is None:
        text = "the %s of a reader travels unencrypted: there is no socket.tls host=%s"
        _log.warning(text, require, config.host)
    return SocketSettings(
        require=require,
        token=token,
        ticket_grace_us=config.ticket_grace // timedelta(microseconds=1),
        tls=tls,
        selection_bytes=config.selection_bytes,
    )
