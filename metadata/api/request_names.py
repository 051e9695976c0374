"""The names in requests, with the grammar that each is held to."""

from typing import Annotated

from pydantic import AfterValidator, Field

from envelope.errors import InvalidName, UnknownStream
from envelope.internal_streams import INTERNAL_NAME_PREFIX, is_group_shard, is_internal
from envelope.subjects import validated_stream_name
from metadata.stream_config import Name

StreamNameField = Annotated[Name, AfterValidator(validated_stream_name)]
NodeName = Annotated[str, Field(min_length=1, max_length=128)]


def _validated_shard(name: str) -> str:
    """Return ``name``.

    Raises:
        UnknownStream: it is none of the streams that have consumer groups.
    """
    if not is_group_shard(name):
        raise UnknownStream(f"shard: {name[:64]!r} has no consumer groups: '__cursors/0' and the like have")
    return name


def _validated_namespace(name: str) -> str:
    """Return ``name``.

    Raises:
        InvalidName: it is outside the grammar of stream names, or the system's own.
    """
    if is_internal(name):
        raise InvalidName(
            f"name: {name[:64]!r} begins with {INTERNAL_NAME_PREFIX!r}: no limits are set there"
        )
    return validated_stream_name(name)


ShardName = Annotated[str, AfterValidator(_validated_shard)]
NamespaceName = Annotated[Name, AfterValidator(_validated_namespace)]
