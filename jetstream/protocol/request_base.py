"""The common part of all requests of the socket protocol."""

from typing import Annotated, ClassVar, Final

from pydantic import BaseModel, ConfigDict, Field

INTEGER_MAX: Final = (1 << 63) - 1

Natural = Annotated[int, Field(ge=0, le=INTEGER_MAX)]
"""An integer from 0 to 2^63-1."""

RequestId = Annotated[int, Field(ge=0, le=INTEGER_MAX, description="chosen by the client, not in flight")]


class ProtocolRequest(BaseModel):
    """One JSON object; unknown fields are refused."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    can_be_cancelled: ClassVar[bool] = True
    """Whether it changes nothing, so that a client may take it back."""

    id: RequestId
