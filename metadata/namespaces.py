"""Namespaces: what an operator allows in one, and what its streams use of it.

A namespace is the part of a stream's name before a ``/``: ``shop/eu/orders`` is in ``shop/eu``, in ``shop``,
and in `EVERYWHERE`. The system's own streams are in none, so that no limit locks consumers out.

Bytes are reserved, not measured: a stream takes of its namespaces what its retention may keep in all its
copies, from its creation on. So a limit is held by who creates and changes streams, and never by who writes.
"""

from dataclasses import dataclass, field
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict

from envelope.internal_streams import is_internal
from envelope.subjects import covers, validated_pattern
from envelope.types import TimestampUs
from metadata.limits import CREATIONS_PER_MINUTE_MAX, NAMESPACE_BYTES_MAX, NAMESPACE_SUBJECTS_MAX
from metadata.stream_config import StreamConfig, Subject

EVERYWHERE: Final = ""
"""The namespace of all streams."""

NEVER: Final = TimestampUs(0)
_MINUTE_US: Final = 60_000_000

_Streams = Annotated[int, Strict(), Field(ge=0, le=1 << 32)]
_Bytes = Annotated[int, Strict(), Field(ge=0, le=NAMESPACE_BYTES_MAX)]
_Rate = Annotated[int, Strict(), Field(ge=1, le=CREATIONS_PER_MINUTE_MAX)]
_Pattern = Annotated[Subject, AfterValidator(validated_pattern)]


class NamespaceLimits(BaseModel):
    """The limits of a namespace; a field that is None limits nothing.

    As a change (`merged`) only the fields that were set count.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    streams: _Streams | None = Field(default=None, description="of them; each partition is one")
    bytes: _Bytes | None = Field(
        default=None,
        description="that its streams reserve: of each (`retention.bytes` + `segment_bytes`) x copies",
    )
    creations_per_minute: _Rate | None = Field(
        default=None, description="streams created in a minute; each partition is one"
    )
    subjects: (
        Annotated[tuple[_Pattern, ...], Field(min_length=1, max_length=NAMESPACE_SUBJECTS_MAX)] | None
    ) = Field(default=None, description="patterns; a stream's subject must lie within one of them")

    @property
    def is_empty(self) -> bool:
        """Whether nothing is limited."""
        return all(getattr(self, name) is None for name in NamespaceLimits.model_fields)

    def merged(self, changes: "NamespaceLimits") -> "NamespaceLimits":
        """Return these limits with the fields that are set in ``changes``; null takes a limit away."""
        changed = {name: getattr(changes, name) for name in changes.model_fields_set}
        return NamespaceLimits.model_validate({**dict(self), **changed})

    def allows_subject(self, subject: str) -> bool:
        """Return whether a stream may bind ``subject``, a pattern."""
        return self.subjects is None or any(covers(pattern, subject) for pattern in self.subjects)


UNLIMITED: Final = NamespaceLimits()


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace that has limits."""

    name: str
    limits: NamespaceLimits
    paid_until: TimestampUs = NEVER
    """Where the rate of creations is limited: when the last of those so far has had its share of a minute."""

    def paid_after(self, created: TimestampUs, creations: int = 1) -> TimestampUs:
        """Return `paid_until` after so many more creations; they are refused if that is over a minute later.

        So as many as are allowed in a minute may come at once, and then one each share of it. A clock that
        has gone back by minutes, another node's say, begins the count anew: it locks nobody out.

        Source: ITU-T I.371 (the generic cell rate algorithm, as a virtual schedule).
        """
        rate = self.limits.creations_per_minute
        assert rate is not None, "only a limited rate is counted"
        is_counted = created < self.paid_until <= created + 2 * _MINUTE_US
        share_us = -(-_MINUTE_US // rate)
        return TimestampUs((self.paid_until if is_counted else created) + creations * share_us)

    def wait_us(self, created: TimestampUs, creations: int = 1) -> int:
        """Return how long after ``created`` so many creations are allowed at once; 0: they are.

        Of more than a minute allows, as many as it does.
        """
        rate = self.limits.creations_per_minute
        if rate is None:
            return 0
        return max(0, self.paid_after(created, min(creations, rate)) - _MINUTE_US - created)


def namespaces_of(stream: str) -> tuple[str, ...]:
    """Return the namespaces of the stream of that name, the widest first."""
    if is_internal(stream):
        return ()
    parts = stream.split("/")
    return (EVERYWHERE, *("/".join(parts[:length]) for length in range(1, len(parts))))


def is_in(stream: str, namespace: str) -> bool:
    """Return whether the stream of that name is in ``namespace``."""
    return not is_internal(stream) and (namespace == EVERYWHERE or stream.startswith(f"{namespace}/"))


def reserved_bytes(config: StreamConfig, replicas: int) -> int:
    """Return what a stream with so many replicas takes of its namespaces; 0: it keeps any number of bytes.

    Retention keeps ``retention.bytes`` at least, in whole segments: so one segment more.
    """
    if config.retention.bytes is None:
        return 0
    return (config.retention.bytes + config.segment_bytes) * (replicas + config.read_replicas)


@dataclass(frozen=True, slots=True)
class NamespaceUse:
    """The streams of a namespace, counted."""

    streams: int = 0
    bytes: int = 0
    """Reserved."""


UNUSED: Final = NamespaceUse()


@dataclass(slots=True)
class NamespaceUses:
    """The use of every namespace that has streams, kept up to date."""

    _uses: dict[str, NamespaceUse] = field(default_factory=dict)

    def of(self, namespace: str) -> NamespaceUse:
        """Return the use of a namespace."""
        return self._uses.get(namespace, UNUSED)

    def names(self) -> list[str]:
        """Return the namespaces that have streams, in any order."""
        return list(self._uses)

    def count(self, stream: str, streams: int, reserved: int) -> None:
        """Add to the use of all namespaces of the stream of that name; what is negative is taken away."""
        for namespace in namespaces_of(stream):
            before = self.of(namespace)
            after = NamespaceUse(before.streams + streams, before.bytes + reserved)
            if after.streams:
                self._uses[namespace] = after
            else:
                assert after == UNUSED, f"{namespace!r} has no streams, and reserves {after.bytes} bytes"
                del self._uses[namespace]


@dataclass(slots=True)
class NamespaceTable:
    """The limits and the use of all namespaces; changed by `metadata.catalog` only."""

    rows: dict[str, Namespace] = field(default_factory=dict)
    """Those that have limits."""
    uses: NamespaceUses = field(default_factory=NamespaceUses)
    """Derived from the streams."""

    def limited(self) -> tuple[Namespace, ...]:
        """Return the namespaces that have limits, ordered by name."""
        return tuple(sorted(self.rows.values(), key=lambda row: row.name))

    def limits_of(self, namespace: str) -> NamespaceLimits:
        """Return the limits of a namespace."""
        row = self.rows.get(namespace)
        return UNLIMITED if row is None else row.limits

    def limiting(self, stream: str) -> list[Namespace]:
        """Return the namespaces of the stream of that name that have limits, the widest first."""
        if not self.rows:
            return []
        return [self.rows[name] for name in namespaces_of(stream) if name in self.rows]
