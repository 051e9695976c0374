"""The common part of all responses of the socket protocol."""

from pydantic import BaseModel, ConfigDict, Field

from jetstream.protocol.request_base import Natural


class ResponsePart(BaseModel):
    """A response, or a part of one: a JSON object; clients ignore fields that they do not know."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")


class ProtocolResponse(ResponsePart):
    """The answer to one request."""

    id: Natural


class SocketErrorBody(ResponsePart):
    """An error in the words of docs/errors.md, and the numbers a client needs to go on."""

    code: int
    err_code: str
    description: str
    retriable: bool
    detail: dict[str, int | str] = Field(default_factory=dict)
