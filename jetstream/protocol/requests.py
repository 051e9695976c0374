"""Requests of clients, version 1 of the socket protocol.

Every request is one JSON object with ``op`` and ``id``. Unknown fields are refused, not ignored: a
server that overlooked a newer client's filter would answer with the wrong records.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal, Self, get_args

from pydantic import (
    Field,
    SecretStr,
    ValidationError,
    field_serializer,
    model_validator,
)
from pydantic_core import from_json

from envelope.errors import JetstreamError, RemoteProtocolError, RequestError, Unsupported
from envelope.limits import FETCH_BYTES_DEFAULT, FETCH_BYTES_MAX, FETCH_WAIT_MS_MAX, SUBJECT_BYTES_MAX
from jetstream.protocol.group_requests import FindCoordinator, GroupRequest
from jetstream.protocol.request_base import INTEGER_MAX, Natural, ProtocolRequest
from metadata.tickets import TICKET_CHARS_MAX

PROTOCOL_VERSION: Final = 1
ECHO_CHARS_MAX: Final = 200
"""How much of what a peer sent is repeated to it in an error."""

NAME_CHARS_MAX: Final = 1024
_Name = Annotated[str, Field(max_length=NAME_CHARS_MAX)]
_Ticket = Annotated[SecretStr, Field(max_length=TICKET_CHARS_MAX)]
Column = Literal["key", "headers", "txid", "value"]
"""What a reader may do without; offset, timestamp and subject always come."""


class Hello(ProtocolRequest):
    """First request of every connection: agree on a protocol version, and prove the right to ask."""

    can_be_cancelled: ClassVar[bool] = False
    op: Literal["hello"] = "hello"
    protocol: Natural
    client: _Name = ""
    client_version: _Name = ""
    token: SecretStr | None = None
    """What the server's operator gave out. As long as a header may be: a wrong one is refused as wrong."""

    ticket: _Ticket | None = None
    """What another node gave out over NATS; not to be shown to a server that does not ask for one."""

    @field_serializer("token", "ticket", when_used="json-unless-none")
    def _uncovered(self, secret: SecretStr) -> str:
        return _uncovered(secret)


class ShowTicket(ProtocolRequest):
    """Show one more ticket, or a newer one."""

    can_be_cancelled: ClassVar[bool] = False
    op: Literal["ticket"] = "ticket"
    ticket: _Ticket

    @field_serializer("ticket", when_used="json")
    def _uncovered(self, secret: SecretStr) -> str:
        return _uncovered(secret)


class GetMetadata(ProtocolRequest):
    """Ask which streams and nodes there are; answered in pages."""

    op: Literal["metadata"] = "metadata"
    streams: Annotated[list[_Name], Field(max_length=256)] | None = None
    after: _Name | None = None


class ListOffsets(ProtocolRequest):
    """Ask for an offset by place, time or transaction id, or for the one so many bytes behind another."""

    op: Literal["list_offsets"] = "list_offsets"
    stream: _Name
    at: Literal["earliest", "latest", "timestamp", "txid", "bytes"]
    timestamp: Annotated[int, Field(ge=-INTEGER_MAX, le=INTEGER_MAX)] | None = None
    txid: Annotated[int, Field(ge=-INTEGER_MAX - 1, le=INTEGER_MAX)] | None = None
    offset: Natural | None = None
    bytes: Annotated[int, Field(ge=1, le=INTEGER_MAX)] | None = None
    incarnation: _Name | None = None

    @model_validator(mode="after")
    def _value_belongs_to_its_place(self) -> Self:
        if (self.at == "timestamp") != (self.timestamp is not None):
            raise ValueError('"timestamp" (microseconds) goes with "at": "timestamp", and only with it')
        if (self.at == "txid") != (self.txid is not None):
            raise ValueError('"txid" goes with "at": "txid", and only with it')
        given = (self.offset is not None, self.bytes is not None)
        if given != (self.at == "bytes", self.at == "bytes"):
            raise ValueError('"offset" and "bytes" go with "at": "bytes", and only with it')
        return self


class Fetch(ProtocolRequest):
    """Ask for whole batches from ``offset`` on, or from where the last fetch of ``cursor`` ended."""

    op: Literal["fetch"] = "fetch"
    stream: _Name
    offset: Natural | Literal["next"]
    cursor: Natural | None = None
    end: Natural | None = None
    max_bytes: Annotated[int, Field(ge=1, le=FETCH_BYTES_MAX)] = FETCH_BYTES_DEFAULT
    max_records: Annotated[int, Field(ge=1, le=INTEGER_MAX)] | None = None
    max_wait_ms: Annotated[int, Field(ge=0, le=FETCH_WAIT_MS_MAX)] = 0
    subject: Annotated[str, Field(max_length=SUBJECT_BYTES_MAX)] | None = None
    key: _Name | None = None
    columns: Annotated[list[Column], Field(max_length=4)] | None = None
    last_epoch: Natural | None = None
    incarnation: _Name | None = None
    short_circuit: Literal[True] | None = None
    """The client can read files of the server's machine: the body may stay where it is."""

    @model_validator(mode="after")
    def _next_belongs_to_a_cursor(self) -> Self:
        if self.offset == "next" and self.cursor is None:
            raise ValueError('"offset": "next" goes with a "cursor"')
        if self.offset == "next" and self.last_epoch is not None:
            raise ValueError('a cursor knows its "last_epoch"')
        return self

    @property
    def leaves_out(self) -> bool:
        """Whether the reader wants only some of the records or columns."""
        return self.subject is not None or self.key is not None or self.columns is not None


class Cancel(ProtocolRequest):
    """Take back a request in flight; it has no answer of its own.

    That request is answered by `RequestCancelled` instead, or as ever if the answer was given before or the
    request cannot be cancelled. An id that is not in flight is no error: the answer was on its way.
    """

    can_be_cancelled: ClassVar[bool] = False
    op: Literal["cancel"] = "cancel"
    id: Annotated[Natural, Field(description="of the request that is cancelled")]


Request = Hello | ShowTicket | GetMetadata | ListOffsets | Fetch | FindCoordinator | GroupRequest
"""What is answered."""

_BY_OP: Final[Mapping[str, type[Request | Cancel]]] = {
    model.model_fields["op"].default: model for model in (*get_args(Request), Cancel)
}


def _uncovered(secret: SecretStr) -> str:
    """Give out a secret on its way to the server: the one place where it leaves its wrapper."""
    return secret.get_secret_value()


class RefusedRequest(Exception):
    """The frame is sound and has an id, but the request cannot be served; the connection lives on."""

    def __init__(self, request_id: int, error: JetstreamError) -> None:
        """Keep the id to answer under and the error to answer with."""
        super().__init__(error.description)
        self.request_id = request_id
        self.error = error


def encode_request(request: Request | Cancel) -> bytes:
    """Return the frame header of ``request``."""
    return request.model_dump_json(exclude_none=True).encode()


def decode_request(header: bytes) -> Request | Cancel:
    """Return the request in a frame header.

    Raises:
        RemoteProtocolError: not a JSON object with a usable ``id``, or a malformed cancel: nothing can
            be answered.
        RefusedRequest: an unknown op or field (`Unsupported`), or a value of the wrong type or range
            (`RequestError`).
    """
    fields = decode_json_object(header)
    request_id = fields.get("id")
    if type(request_id) is not int or not 0 <= request_id <= INTEGER_MAX:
        raise RemoteProtocolError(f"request id {_echo(request_id)} is not an integer of 0 to 2^63-1")
    op = fields.get("op")
    model = _BY_OP.get(op) if isinstance(op, str) else None
    if model is None:
        raise RefusedRequest(request_id, Unsupported(f"unknown op {_echo(op)}"))
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        problem = _first_problem(error)
        if model is Cancel:
            raise RemoteProtocolError(f"cancel: {problem.description}") from None
        raise RefusedRequest(request_id, problem) from None


def decode_json_object(header: bytes) -> dict[str, object]:
    """Return the JSON object in ``header``; raise RemoteProtocolError if it is anything else."""
    try:
        fields: object = from_json(header, allow_inf_nan=False)
    except ValueError as error:
        raise RemoteProtocolError(f"frame header is not JSON: {_echo(str(error))}") from None
    if not isinstance(fields, dict):
        raise RemoteProtocolError(f"frame header is JSON {type(fields).__name__}, not an object")
    return fields


def _first_problem(error: ValidationError) -> JetstreamError:
    problem = error.errors(include_url=False, include_context=False)[0]
    place = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        return Unsupported(f"unknown field {_echo(place)}")
    return RequestError(f"{_echo(place)}: {_echo(problem['msg'])}")


def _echo(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= ECHO_CHARS_MAX else text[:ECHO_CHARS_MAX] + "…"
