"""From the ``[peers]`` settings to how a node takes part in its cluster; files are read at the start."""

import logging
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import SecretStr

from envelope.errors import InvalidConfig, UnavailableError
from envelope.types import NodeId
from jetstream.node.settings.credentials import (
    client_side,
    load_authorities,
    load_certificate,
    server_side,
    token_in,
)
from jetstream.node.settings.node_config import LOOPBACK, NodeConfig, PeersConfig
from metadata.node.peers.dialling import Address, PeerIdentity

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """How a node takes part.

    Attributes:
        identity: who it is to other nodes.
        voters: the nodes with which the settings say that the cluster begins, with their addresses.
        begins: whether the node begins a cluster if it has no data and none is there.
        listen: where it listens for other nodes; None if it is alone and opens no such port.
        address: where other nodes dial this one; None if it is alone.
        catch_up_bytes: that it serves each second to replicas that are not in sync; None is without a limit.
    """

    identity: PeerIdentity
    voters: Mapping[NodeId, Address]
    listen: Address | None
    address: Address | None
    catch_up_bytes: int | None = None
    begins: bool = False

    def listening(self) -> socket.socket | None:
        """Return a socket that listens for other nodes, None if it is alone.

        Raises:
            UnavailableError: the address is taken, or not this machine's.
        """
        if self.listen is None:
            return None
        host, port = self.listen.host, self.listen.port
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            return socket.create_server((host, port), family=family)
        except OSError as error:
            raise UnavailableError(f"cannot listen for peers on {host}:{port}: {error}") from None


def peer_settings(config: NodeConfig, node_id: NodeId) -> PeerSettings:
    """Read certificate, authorities and token; blocks, for the start. Without ``[peers]`` the node is alone.

    Args:
        config: of the node.
        node_id: of the node.

    Raises:
        InvalidConfig: a file that is not there, or is not what it should be; nodes that everybody could join
            who can connect, unless ``peers.open`` says so.
    """
    peers = config.peers
    if peers is None:
        return PeerSettings(PeerIdentity(config.cluster, node_id), {}, None, None)
    own = peers.address_of(node_id)
    listen = Address(peers.host or own.host, own.port if peers.port is None else peers.port)
    voters = peers.voters or {}
    exposed = any(address.host not in LOOPBACK for address in (own, listen, *voters.values()))
    identity = _identity(config.cluster, node_id, peers, exposed=exposed)
    return PeerSettings(identity, voters, listen, own, peers.catch_up_bytes, begins=peers.init)


def peer_token(peers: PeersConfig) -> SecretStr | None:
    """Return the token that nodes send each other; blocks if it is in a file.

    Raises:
        InvalidConfig: the file cannot be used.
    """
    return peers.token if peers.token_file is None else token_in(peers.token_file, "peers.token_file")


def _identity(cluster: str, node_id: NodeId, peers: PeersConfig, *, exposed: bool) -> PeerIdentity:
    token = peer_token(peers)
    if peers.tls is None:
        if exposed and token is None and not peers.open:
            raise InvalidConfig(
                "peers: whoever can connect could change the metadata and read every stream: "
                "give all nodes a token or tls, or set peers.open where nobody else can connect"
            )
        if exposed and token is None:
            _log.warning("whoever can connect can change the metadata: no peers.tls, no peers.token")
        elif exposed:
            _log.warning("peers.token travels unencrypted: there is no peers.tls")
        return PeerIdentity(cluster, node_id, token)
    server, client = server_side(), client_side()
    for context in (server, client):
        load_certificate(context, peers.tls.certificate, peers.tls.key, "peers.tls")
        load_authorities(context, peers.tls.ca, "peers.tls.ca")
    return PeerIdentity(cluster, node_id, token, server, client)
