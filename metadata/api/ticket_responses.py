"""Responses about tickets, which readers show at a node's socket."""

from datetime import datetime

from pydantic import Field

from metadata.api.response_base import ApiResponse


class TicketNode(ApiResponse):
    """A node's socket, for who may not ask for the cluster."""

    id: str
    host: str
    port: int


class TicketResponse(ApiResponse):
    """A ticket; whoever has it has its right until it ends, so it is a secret."""

    ticket: str = Field(repr=False, description="to be shown to nodes as it is")
    expires: datetime = Field(description="when it ends; nodes take it a while longer: socket.ticket_grace")
    valid_s: float = Field(description="seconds from its making to its end")
    nodes: list[TicketNode] = Field(description="some of the cluster, enough to find all others")


class RotateKeyResponse(ApiResponse):
    """The key that signs tickets from now on, which is durable."""

    key_id: str
    revoked: bool = Field(description="whether tickets of earlier keys have ended")
