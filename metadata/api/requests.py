"""Requests: one frozen model each; unknown keys are errors."""

from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict

from envelope.subjects import validated_stream_name, validated_subject
from metadata.limits import LIST_PAGE_DEFAULT, LIST_PAGE_MAX
from metadata.stream_config import Name, StreamConfig, Subject
from metadata.stream_patch import StreamPatch

StreamNameField = Annotated[Name, AfterValidator(validated_stream_name)]
Count = Annotated[int, Strict(), Field(ge=0, le=1 << 62)]


class _Request(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CreateStreamRequest(StreamConfig):
    """Create a stream, or find it if one of that name has an equal configuration."""

    @classmethod
    def of(cls, config: StreamConfig) -> "CreateStreamRequest":
        """Return the request that asks for ``config``, every field written out."""
        return cls.model_validate({name: getattr(config, name) for name in StreamConfig.model_fields})

    @property
    def config(self) -> StreamConfig:
        """The configuration that is asked for."""
        return StreamConfig.model_validate({name: getattr(self, name) for name in StreamConfig.model_fields})


class UpdateStreamRequest(StreamPatch):
    """Change a stream's configuration: a JSON Merge Patch (RFC 7396) beside the name."""

    # Narrower than the patch's own optional name: a request must say which stream.
    name: StreamNameField = Field(description="the stream to change")

    @property
    def patch(self) -> StreamPatch:
        """The changes alone."""
        changed = self.model_fields_set - {"name"}
        return StreamPatch.model_validate({name: getattr(self, name) for name in changed})


class DeleteStreamRequest(_Request):
    """Delete a stream with everything in it; there is no way back."""

    name: StreamNameField


class StreamInfoRequest(_Request):
    """Ask for a stream's configuration and live state."""

    name: StreamNameField


class ListStreamsRequest(_Request):
    """List streams by name, in pages."""

    prefix: str | None = Field(default=None, description="only names that begin so, e.g. a namespace 'a/'")
    offset: Count = Field(default=0, description="streams to skip, in the order of names")
    limit: Annotated[int, Strict(), Field(ge=1, le=LIST_PAGE_MAX)] = LIST_PAGE_DEFAULT


class LookupStreamsRequest(_Request):
    """List the streams that would store a message on a subject."""

    subject: Annotated[Subject, AfterValidator(validated_subject)] = Field(description="without wildcards")


class TruncateStreamRequest(_Request):
    """Remove records before an offset; at most up to the high watermark."""

    name: StreamNameField
    before: Count = Field(description="the first offset to keep")


class ClusterInfoRequest(_Request):
    """Ask for the nodes and how to reach them."""


Request = (
    CreateStreamRequest
    | UpdateStreamRequest
    | DeleteStreamRequest
    | StreamInfoRequest
    | ListStreamsRequest
    | LookupStreamsRequest
    | TruncateStreamRequest
    | ClusterInfoRequest
)

REQUESTS: Final[dict[str, type[Request]]] = {
    "stream.create": CreateStreamRequest,
    "stream.update": UpdateStreamRequest,
    "stream.delete": DeleteStreamRequest,
    "stream.info": StreamInfoRequest,
    "stream.list": ListStreamsRequest,
    "stream.lookup": LookupStreamsRequest,
    "stream.truncate": TruncateStreamRequest,
    "cluster.info": ClusterInfoRequest,
}
"""By the tail of the subject, behind the prefix."""
