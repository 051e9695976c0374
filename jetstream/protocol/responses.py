"""Responses of a server, version 1 of the socket protocol.

A response header is one JSON object with the request's ``id``, and ``error`` if it failed. Clients
ignore fields they do not know; servers may add some. The last field is the header's CRC32C: a body has
checksums of its own, and a flipped digit of ``next_offset`` would skip records unseen.
"""

from typing import Annotated, Any, Final, Literal

from crc32c import crc32c
from pydantic import Field, ValidationError

from envelope.errors import (
    InternalError,
    JetstreamError,
    RemoteProtocolError,
    UnavailableError,
    error_from_wire,
    registry,
)
from envelope.limits import RESPONSE_BODY_BYTES_MAX
from jetstream.protocol.group_responses import GroupResponse
from jetstream.protocol.request_base import Natural
from jetstream.protocol.requests import decode_json_object
from jetstream.protocol.response_base import ProtocolResponse, ResponsePart, SocketErrorBody

DESCRIPTION_CHARS_MAX: Final = 2048
DETAILS_MAX: Final = 16
DETAIL_CHARS_MAX: Final = 256

_SEAL_BYTES: Final = len(',"crc":"00000000"}')


class HelloResponse(ProtocolResponse):
    """The version both sides now speak, and who answers."""

    protocol: int
    node: str
    node_version: str
    cancel: Literal[True] | None = None
    """Whether it knows ``cancel``; None: an older server, which would refuse it."""
    machine: str | None = None
    """Where it runs, for readers that may be there too; None: it names no files.

See `jetstream.log.disk.machine_id`.
"""


class TicketShownResponse(ProtocolResponse):
    """The ticket is good, and takes the place of an older one for the same."""


class NodeMetadata(ResponsePart):
    """A node's address on the socket protocol."""

    id: str
    host: str
    port: int
    rack: str | None = None
    """Where it stands, if it was told."""


class StreamMetadata(ResponsePart):
    """A stream's leader and holders; its readable range, if the answering node has it."""

    name: str
    incarnation: str
    leader: str | None = None
    """None: nobody leads it now."""
    leader_epoch: Natural
    """Of the present reign, or of the last one."""
    replicas: list[str] | None = None
    """The nodes that have it; None from a server that knows only itself."""
    isr: list[str] | None = None
    """Those of them that have everything that is committed."""
    read_replicas: list[str] | None = None
    """More nodes that have it, to be read from; they never lead it."""
    log_start_offset: Natural | None = None
    log_end_offset: Natural | None = None
    high_watermark: Natural | None = None


class MetadataResponse(ProtocolResponse):
    """One page of streams by name, and nodes (64 at most); ``more``: ask again after the last name."""

    nodes: list[NodeMetadata]
    streams: list[StreamMetadata]
    more: bool = False


class ListOffsetsResponse(ProtocolResponse):
    """The offset asked for, never beyond the high watermark."""

    offset: Natural
    leader_epoch: Natural
    log_start_offset: Natural
    high_watermark: Natural
    incarnation: str
    leads: bool | None = None
    """Whether the node leads the stream now; one that follows may know of a new high watermark late."""
    bytes: Natural | None = None
    """Of a request ``at`` bytes: of the batches up to ``offset``, as they are stored; 0 if there are none."""


class StoredRangeResponse(ResponsePart):
    """Where a body lies that was not sent: ``length`` bytes from ``position`` of a file."""

    path: Annotated[str, Field(pattern=r"^/[^\x00]*$")]
    device: Natural
    inode: Natural
    """By them a reader knows that it has opened that very file."""
    position: Natural
    length: Annotated[int, Field(ge=1, le=RESPONSE_BODY_BYTES_MAX)]


class FetchResponse(ProtocolResponse):
    """The range in the body: ``[start_offset, next_offset)``, whole batches; the client trims the edges."""

    epoch: Natural
    """Leader epoch of the last record in the body; of the stream if the body is empty."""
    schema_id: int
    start_offset: Natural
    """Base of the first batch: at or below the offset asked for."""
    next_offset: Natural
    """Where the next fetch goes on."""
    records: Natural
    high_watermark: Natural
    log_start_offset: Natural
    incarnation: str
    leads: bool | None = None
    """Whether the node leads the stream now; one that follows may know of a new high watermark late."""
    max_timestamp: int | None = None
    """If the request left records out: the largest timestamp below ``next_offset``, theirs included."""
    file: StoredRangeResponse | None = None
    """Instead of a body, where the request allowed it."""


Response = (
    HelloResponse
    | TicketShownResponse
    | MetadataResponse
    | ListOffsetsResponse
    | FetchResponse
    | GroupResponse
)


class SocketErrorResponse(ResponsePart):
    """One request failed, or the connection if ``id`` is null: the server closes it then."""

    id: Natural | None
    error: SocketErrorBody


def _sealed(header: bytes) -> bytes:
    """Return ``header`` with the CRC32C of all its bytes as one more field, the last."""
    return b'%b,"crc":"%08x"}' % (header[:-1], crc32c(header))


def _unsealed(header: bytes) -> bytes:
    """Return a header without its last field; raise RemoteProtocolError if that is not its CRC32C."""
    whole = header[:-_SEAL_BYTES] + b"}"
    if _sealed(whole) != header:
        raise RemoteProtocolError("a response header does not match its CRC32C")
    return whole


def encode_response(response: Response) -> bytes:
    """Return the frame header of ``response``."""
    return _sealed(response.model_dump_json(exclude_none=True).encode())


def encode_error(request_id: int | None, error: JetstreamError) -> bytes:
    """Return the frame header of a failure; ``request_id`` is None if the connection itself failed."""
    return _sealed(SocketErrorResponse(id=request_id, error=error_body(error)).model_dump_json().encode())


def error_body(error: JetstreamError) -> SocketErrorBody:
    """Return ``error`` as it travels, cut so that no error outgrows a header."""
    return SocketErrorBody(
        code=error.status,
        err_code=error.err_code,
        description=_sendable(error.description, DESCRIPTION_CHARS_MAX),
        retriable=error.retriable,
        detail={
            key: _sendable(value, DETAIL_CHARS_MAX) if isinstance(value, str) else value
            for key, value in list(error.detail.items())[:DETAILS_MAX]
        },
    )


def response_id(header: bytes) -> tuple[dict[str, object], int | None]:
    """Return the fields of a response header and its id.

    Raises:
        RemoteProtocolError: damaged on the way, not a JSON object, or an id that is neither an integer nor
            null.
    """
    fields = decode_json_object(_unsealed(header))
    answered = fields.get("id")
    if answered is not None and type(answered) is not int:
        raise RemoteProtocolError(f"response id is a {type(answered).__name__}")
    return fields, answered


def decode_response(model: type[Response], fields: dict[str, object]) -> Response:
    """Return the response in ``fields``; raise RemoteProtocolError if a field is missing or wrong."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise RemoteProtocolError(f"{model.__name__}: {_first_problem(error)}") from None


def decode_error(fields: dict[str, object]) -> JetstreamError:
    """Return the typed error in ``fields``; raise RemoteProtocolError if it has another shape."""
    try:
        body = SocketErrorResponse.model_validate(fields).error
    except ValidationError as error:
        raise RemoteProtocolError(f"error response: {_first_problem(error)}") from None
    return error_of(body)


def error_of(body: SocketErrorBody) -> JetstreamError:
    """Return the typed error that `error_body` made ``body`` of; one that is not known here by its kind."""
    # A key that is a parameter of the constructor would be a TypeError of ours at a peer's will.
    detail = {key: value for key, value in body.detail.items() if key not in ("self", "description")}
    if body.err_code in registry():
        return error_from_wire(body.err_code, body.description, detail)
    unknown: type[JetstreamError] = UnavailableError if body.retriable else InternalError
    return unknown(f"{body.err_code}: {body.description}", **detail)


def _sendable(text: str, chars_max: int) -> str:
    """Cut ``text`` so that no error outgrows a header, and drop what is not Unicode."""
    return text[:chars_max].encode("utf-8", "replace").decode()


def _first_problem(error: ValidationError) -> str:
    problem: Any = error.errors(include_url=False, include_context=False)[0]
    return f"{'.'.join(str(part) for part in problem['loc'])}: {problem['msg']}"[:DESCRIPTION_CHARS_MAX]
