"""Responses about namespaces."""

from pydantic import ConfigDict, Field

from metadata.api.response_base import ApiResponse
from metadata.namespaces import NamespaceLimits


class ReportedLimits(NamespaceLimits):
    """The limits of a namespace; null where it has none."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class NamespaceInfo(ApiResponse):
    """A namespace: its use and its limits."""

    name: str | None = Field(description="null: all streams of the cluster")
    streams: int = Field(description="in it, with each partition, without the system's own")
    bytes: int = Field(
        description="that they reserve: of each (`retention.bytes` + `segment_bytes`) x copies; one without "
        "`retention.bytes` reserves none"
    )
    limits: ReportedLimits


class ListNamespacesResponse(ApiResponse):
    """A page of namespaces in the order of their names; it may be shorter than the limit asked for."""

    namespaces: list[NamespaceInfo]
    total: int = Field(description="namespaces that match, in all pages")
    offset: int = Field(description="of the first in this page; the next page begins at offset + its length")
