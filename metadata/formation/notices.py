"""The notice of a node while a cluster forms, and its bytes.

A notice holds all that its node reports, and is sent again and again: it may be lost, repeated or overtaken.
It travels over NATS as JSON; where the nodes have a token, with a proof that its sender knows the token:
HMAC-SHA-256 of the notice without the proof, as canonical JSON.
"""

import hashlib
import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from envelope.errors import RemoteProtocolError, Unauthorized
from envelope.types import NodeId

NOTICE_BYTES_MAX: Final = 64 * 1024
"""Some thousand bytes for each of the few voters that a cluster has."""

EXPECTED_MAX: Final = 15
"""Voters that a cluster can form with; more only slow down every decision."""

_Text = Annotated[str, Field(min_length=1, max_length=255)]
_Name = Annotated[NodeId, Field(min_length=1, max_length=255)]
_Port = Annotated[int, Field(ge=1, le=65_535)]


@dataclass(frozen=True, slots=True, order=True)
class FormedVoter:
    """A voter of a formed cluster, and where other nodes dial it; ordered by id."""

    node_id: _Name
    host: _Text
    port: _Port


FormedVoters = tuple[FormedVoter, ...]
"""Ordered, each id once."""


@dataclass(frozen=True, slots=True, order=True)
class VoterCandidate:
    """A node that can be a voter; ordered by id, and the same only with the same directory and address."""

    node_id: _Name
    directory: _Text
    """Identity of its data directory."""
    host: _Text
    port: _Port
    """Where other nodes dial it."""

    def __str__(self) -> str:
        return f"{self.node_id} at {self.host}:{self.port} with directory {self.directory}"


Candidates = tuple[VoterCandidate, ...]
"""Ordered, each id once."""


def voters_of(candidates: Candidates) -> FormedVoters:
    """Return the voters that a promise names."""
    return tuple(FormedVoter(one.node_id, one.host, one.port) for one in candidates)


@dataclass(frozen=True, slots=True)
class Notice:
    """The state of ``source`` now."""

    source: VoterCandidate
    expected: Annotated[int, Field(ge=0)]
    """Voters that it waits for; 0 if they are configured."""
    view: Candidates = ()
    """The set that it would promise: the first of the candidates that it hears."""
    promised: Candidates = ()
    """The set that it has promised, durably and for ever; empty if none."""
    formed: FormedVoters = ()
    """The voters of the cluster that it belongs to; empty if there is none yet."""


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
    for named in (notice.view, notice.promised, notice.formed):
        if not _is_ordered(named):
            raise RemoteProtocolError("a notice names nodes twice, or out of order")
    return notice


def _is_ordered(named: Sequence[VoterCandidate | FormedVoter]) -> bool:
    ids = [one.node_id for one in named]
    return ids == sorted(set(ids))


def _proof(canonical: bytes, token: str) -> str:
    return hmac.new(token.encode(), canonical, hashlib.sha256).hexdigest()


def _canonical(body: dict[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
