"""The changes of ``stream.update``: a JSON Merge Patch of a stream's configuration.

The rules are those of the standard: a key that is absent stays as it is, a value replaces, an object
(``retention``, ``labels``) is merged key by key, ``null`` takes a label away and puts any other field
back to its default.

``name`` never changes: it is the identity. Nor do the fields that make a stream a partition: a larger
``partitions`` of a partitioned stream makes more of them, and changes none that there is. They may be
repeated unchanged, so that a configuration read from ``stream.info`` can be edited and sent back whole.
Everything else is mutable, the subject too, as users of NATS expect; what is stored keeps the subject it was
published on.

Another number of ``replicas`` begins a reassignment (`metadata.catalog.reassignment`), at whose end the
configuration has it; ``null`` is the cluster's default, and a number where it is stored.

Source: RFC 7396 (JSON Merge Patch).
"""

from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel, ConfigDict, Field, create_model

from envelope.errors import InvalidConfig
from metadata.limits import LABELS_MAX
from metadata.stream_config import (
    LabelKey,
    LabelValue,
    Partitions,
    ReadReplicas,
    Replicas,
    Retention,
    StreamConfig,
    Switch,
)

IMMUTABLE_FIELDS: Final = ("name", "partitions", "partition_by", "partition_of", "partition")


def _optional(config: type[BaseModel]) -> dict[str, Any]:
    """Return what ``config`` declares as fields for `create_model` that may be null or absent."""
    immutable = dict.fromkeys(IMMUTABLE_FIELDS, "immutable: its own value, or absent")
    return {
        name: (annotation | None, Field(default=None, description=immutable.get(name)))
        for name, annotation in config.__annotations__.items()
    }


if TYPE_CHECKING:  # mypy knows the fields that are declared below, and refuses to read all others
    _RetentionFields = BaseModel
    _StreamFields = BaseModel
else:
    _RetentionFields = create_model("RetentionFields", **_optional(Retention))
    _StreamFields = create_model("StreamFields", **_optional(StreamConfig))


class RetentionPatch(_RetentionFields):
    """Changes of `Retention`; null switches a limit off."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class StreamPatch(_StreamFields):
    """Changes of a `StreamConfig`; only the fields that were set count (``model_fields_set``)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # What differs from an optional setting, or is read by its name:
    replicas: Replicas | None = Field(
        default=None,
        description="copies: of another number, more or fewer are made; null: the cluster's default",
    )
    min_insync_replicas: Replicas | None = None
    read_replicas: ReadReplicas | None = None
    retention: RetentionPatch | None = None
    tier: Switch | None = None
    labels: dict[LabelKey, LabelValue | None] | None = Field(default=None, max_length=2 * LABELS_MAX)
    partitions: Partitions | None = Field(
        default=None, description="of a partitioned stream: as many as there are, or more, which are added"
    )


def patched(config: StreamConfig, patch: StreamPatch) -> StreamConfig:
    """Return ``config`` with ``patch`` merged in (RFC 7396), and as many replicas as before.

    Raises:
        InvalidConfig: an immutable field would change.
        JetstreamError: the result contradicts itself (as `StreamConfig`).
        pydantic.ValidationError: the result is outside a limit.
    """
    fields = config.settings()
    for name in patch.model_fields_set - {"replicas"}:
        value = getattr(patch, name)
        if value is None:
            fields.pop(name)
        elif isinstance(value, RetentionPatch):
            fields[name] = _merged_retention(config.retention, value)
        elif isinstance(value, dict):
            fields[name] = _merged_labels(config.labels, value)
        else:
            fields[name] = value
    if "subject" not in fields:
        raise InvalidConfig("subject: a stream must have one", field="subject")
    for name in IMMUTABLE_FIELDS:
        if name in patch.model_fields_set and fields.get(name) != getattr(config, name):
            raise InvalidConfig(f"{name}: cannot be changed", field=name)
    return StreamConfig.model_validate(fields)


def with_default_replicas(patch: StreamPatch, default: int) -> StreamPatch:
    """Return the patch with the cluster's default in the place of a null for the number of replicas."""
    if "replicas" not in patch.model_fields_set or patch.replicas is not None:
        return patch
    return patch.model_copy(update={"replicas": default})


def _merged_retention(retention: Retention, patch: RetentionPatch) -> Retention:
    return retention.model_copy(update={name: getattr(patch, name) for name in patch.model_fields_set})


def _merged_labels(labels: dict[str, str], patch: dict[str, str | None]) -> dict[str, str]:
    merged = {**labels, **patch}
    return {key: value for key, value in merged.items() if value is not None}
