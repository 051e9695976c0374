"""The audit's words for a change that was requested: by whom, of what, and what became of it.

The client is known as far as NATS tells: where a request crosses from one account into another, by an import,
nats-server replaces ``Nats-Request-Info`` by what it knows of the client. Inside the node's own account any
client may write that header itself. So it is a label, and no proof.

Source: nats-server ``server/client.go`` (``getClientInfo``, ``processServiceImport``).
"""

import json
from dataclasses import dataclass
from typing import Final

from pydantic_core import from_json

from envelope.errors import InvalidHeader, JetstreamError, Unsupported
from envelope.headers import REQUEST_INFO, parse_header_block
from envelope.limits import KIB
from envelope.types import NodeId, TimestampUs
from metadata.api.requests import QUESTIONS, REQUESTS, RebalanceRequest, Request
from metadata.api.responses import utc
from metadata.api.subjects import split_subject

DONE: Final = "done"
"""The result of a change that took place; that of another is the word of its error."""

_TEXT_CHARS_MAX: Final = 256
_INFO_BYTES_MAX: Final = 8 * KIB
_NAMED_BYTES_MAX: Final = 64 * KIB
"""Payloads of refused requests that are longer are not searched for a name."""
_TARGETS: Final = ("name", "group", "node")
_TEXTS: Final = ("acc", "svc", "user", "name_tag", "name", "host", "server", "cluster", "issuer_key")
_NUMBERS: Final = ("id",)
_NUMBER_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEvent:
    """A change that was requested, and what became of it; or a refusal at a node's socket."""

    operation: str
    """Two tokens, such as ``stream.create``."""
    name: str | None
    """Of the stream, group or node that it is about; as it was requested, and so maybe none at all."""
    time: TimestampUs
    """When it was requested, by the node's clock."""
    error: JetstreamError | None = None
    """Why it was refused, or why nobody knows whether it took place; None: it took place."""
    headers: bytes | None = None
    """Of the request, for what NATS says of the client."""
    peer: str | None = None
    """Address of a client at the node's socket."""
    request: str | None = None
    """Which one of the socket protocol, such as ``fetch``."""
    withheld: int = 0
    """How many events like it were left out before this one."""

    def __post_init__(self) -> None:
        """Check what the subject of the record is made of: nobody would take one on another."""
        assert self.operation.count(".") == 1, f"an operation has two tokens: {self.operation!r}"


def encode_event(event: AuditEvent, node: NodeId, number: str) -> str:
    """Return an event as one line of JSON, in ASCII: whatever came from outside is escaped, and cut.

    Args:
        event: what is said.
        node: that took the request, and says so.
        number: of the event, unique.
    """
    fields: dict[str, object] = {
        "id": number,
        "time": utc(event.time).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "node": node,
        "operation": event.operation,
    }
    if event.name is not None:
        fields["name"] = event.name[:_TEXT_CHARS_MAX]
    if event.request is not None:
        fields["request"] = event.request
    error = event.error
    fields["result"] = DONE if error is None else error.err_code
    if error is not None:
        fields |= {"code": error.status, "reason": error.description[:_TEXT_CHARS_MAX]}
    client = client_of(event.headers) if event.peer is None else {"peer": event.peer}
    if client is not None:
        fields["client"] = client
    if event.withheld:
        fields["withheld"] = event.withheld
    return json.dumps(fields)


def client_of(headers: bytes | None) -> dict[str, str | int] | None:
    """Return what ``Nats-Request-Info`` in a header block says of a client; None if it says nothing.

    Only fields that we know, of the types that nats-server gives them; texts are cut. Never raises.
    """
    if not headers:
        return None
    try:
        found = [value for name, value in parse_header_block(headers) if name == REQUEST_INFO]
        info = (
            from_json(found[0], allow_inf_nan=False) if found and len(found[0]) <= _INFO_BYTES_MAX else None
        )
    except (InvalidHeader, ValueError):
        return None
    if not isinstance(info, dict):
        return None
    client: dict[str, str | int] = {}
    for name in _TEXTS:
        text = info.get(name)
        if isinstance(text, str) and text:
            client[name] = text[:_TEXT_CHARS_MAX]
    for name in _NUMBERS:
        number = info.get(name)
        if type(number) is int and 0 <= number <= _NUMBER_MAX:
            client[name] = number
    return client or None


def requested_change(suffix: str, request: Request | bytes) -> tuple[str, str | None] | None:
    """Return the operation of a request and the name of what it is to change; None of a question.

    Args:
        suffix: the subject behind the prefix, e.g. ``stream.delete.orders``.
        request: or the payload of one that was refused before it was read.
    """
    try:
        operation, name = split_subject(suffix)
    except Unsupported:
        return None
    model = REQUESTS[operation]
    if model in QUESTIONS or (isinstance(request, RebalanceRequest) and request.dry_run):
        return None
    field = next((field for field in _TARGETS if field in model.model_fields), None)
    if field is None or name is not None:
        return operation, name
    value = _read(request).get(field) if isinstance(request, bytes) else getattr(request, field)
    return operation, value if isinstance(value, str) else None


def _read(payload: bytes) -> dict[str, object]:
    if len(payload) > _NAMED_BYTES_MAX:
        return {}
    try:
        body = from_json(payload)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}
