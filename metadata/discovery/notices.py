"""The notice of a node to all nodes of its cluster, and its bytes.

A notice holds all that its node reports, and may be lost, repeated or overtaken. It travels over NATS as
JSON; where the nodes have a token, with a proof that its sender knows the token: HMAC-SHA-256 of the notice
without the proof, as canonical JSON.
"""

import hashlib
import hmac
import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from envelope.errors import CorruptDataError, RemoteProtocolError, Unauthorized
from envelope.types import LogIndex, NodeId
from metadata.raft.configuration import Configuration, decode_configuration, encode_configuration

NOTICE_BYTES_MAX: Final = 64 * 1024
"""Some hundred bytes for each of the few voters that a cluster has."""

_Text = Annotated[str, Field(min_length=1, max_length=255)]
_Name = Annotated[NodeId, Field(min_length=1, max_length=255)]
_Port = Annotated[int, Field(ge=1, le=65_535)]
_Index = Annotated[LogIndex, Field(ge=0)]
_NOTHING: Final = LogIndex(0)


@dataclass(frozen=True, slots=True, order=True)
class NodePlace:
    """A node, and where others dial it."""

    node_id: _Name
    host: _Text
    port: _Port

    def __str__(self) -> str:
        return f"{self.node_id} at {self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Notice:
    """All that ``source`` knows."""

    source: NodePlace
    directory: _Text
    """Identity of its data directory."""
    cluster_id: _Text | None = None
    """Of the cluster that it belongs to; None: it belongs to none, or does not know yet."""
    begins: bool = False
    """It is about to begin a cluster."""
    asks: bool = False
    """It wants to be answered."""
    voters: tuple[NodePlace, ...] = ()
    """The nodes with a vote in its cluster; empty if it belongs to none, or knows none."""
    as_of: _Index = _NOTHING
    """Index of the metadata log at which ``configuration`` was known to be committed."""
    configuration: Configuration | None = None
    """The members of the metadata group; None: their log has named none yet."""


def is_kin(notice: Notice, cluster_id: str | None, voters: Collection[NodeId], directory: str | None) -> bool:
    """Return whether a notice is of a node of this node's cluster, as far as can be told.

    Others may have the same name, and the same ids of nodes.

    Args:
        notice: of another node.
        cluster_id: of this node's cluster; None: it has none yet, or that is not known.
        voters: the nodes with a vote in it.
        directory: with which the other node is registered in it; None: it is not.
    """
    if directory == notice.directory:
        return True
    if cluster_id is not None:
        return notice.cluster_id == cluster_id
    return notice.source.node_id in voters


class _Sealed(BaseModel):
    cluster: str
    notice: Notice
    proof: str = ""


_NOTICE: Final = TypeAdapter(Notice)


def encode_notice(notice: Notice, cluster: str, token: str | None) -> bytes:
    """Return a notice of a node of ``cluster``; with a token it is proved."""
    body: dict[str, Any] = {"cluster": cluster, "notice": _NOTICE.dump_python(notice, mode="json")}
    if token is not None:
        body["proof"] = _proof(_canonical(body), token)
    return _canonical(body)


def decode_notice(data: bytes, cluster: str, token: str | None) -> Notice | None:
    """Return the notice of a node of ``cluster``; None if it is of another cluster.

    Raises:
        RemoteProtocolError: it is no notice.
        Unauthorized: it does not prove that its node knows the token.
    """
    if len(data) > NOTICE_BYTES_MAX:
        raise RemoteProtocolError(f"a notice of {len(data)} bytes")
    try:
        sealed, raw = _Sealed.model_validate_json(data), json.loads(data)
        canonical = _canonical({name: value for name, value in raw.items() if name != "proof"})
    except (ValidationError, ValueError, RecursionError):
        raise RemoteProtocolError("a notice that is none") from None
    if sealed.cluster != cluster:
        return None
    notice = sealed.notice
    if token is not None and not hmac.compare_digest(
        sealed.proof.encode(), _proof(canonical, token).encode()
    ):
        raise Unauthorized(f"a notice of node {notice.source.node_id!r} does not prove the token")
    if notice.configuration is not None:
        try:
            decode_configuration(encode_configuration(notice.configuration))
        except CorruptDataError as error:
            raise RemoteProtocolError(f"a notice names members that cannot be: {error.description}") from None
    return notice


def _proof(canonical: bytes, token: str) -> str:
    return hmac.new(token.encode(), canonical, hashlib.sha256).hexdigest()


def _canonical(body: dict[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
