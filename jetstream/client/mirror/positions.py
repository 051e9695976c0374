"""Where a mirror goes on, and when it must not; pure.

The truth is in the target alone. All records that are copied into it are published in one session, each
message of which has the source's next offset as its number, and is refused unless the target ends exactly
where that record belongs. So the last record of the target says how far the copy is, whoever has made it. A
cursor beside the target says where the copy began: the difference between the offsets never changes.
"""

from dataclasses import dataclass
from typing import Final, Self

import pyarrow as pa

from envelope.errors import (
    Fenced,
    JetstreamError,
    OffsetsApart,
    OriginDiffers,
    SequenceGap,
    SequencePassed,
    SessionExpired,
    SourceTruncated,
)
from envelope.limits import SESSION_ID_BYTES_MAX
from jetstream.client.admin.group_lag import CommittedRange
from jetstream.client.publish.session_rules import named_last

SESSION_PREFIX: Final = "mirror:"
_GROUP_STREAM_CHARS: Final = 128
"""Of a stream's name, so that an incarnation has room behind it."""
ANOTHER_STREAM: Final = "mirror into another stream, once the target is read-only or has another subject"


def group_of(stream: str, target_incarnation: str) -> str:
    """Return the consumer group of all mirrors of ``stream`` into one target, in the stream's namespace."""
    return f"{stream[:_GROUP_STREAM_CHARS].rstrip('/')}/mirror-{target_incarnation}"


@dataclass(frozen=True, slots=True)
class Origin:
    """One life of a source stream, and of the target that it is copied into."""

    stream: str
    incarnation: str
    target_incarnation: str

    @property
    def session(self) -> str:
        """The name of the session that its records are published in.

        It is the target's own: another stream on these subjects may have stored messages of another mirror,
        and what is known of them there says nothing about this copy. The two incarnations make it unique, so
        that the stream's name, for people, may be cut.
        """
        lives = f"{self.incarnation}/{self.target_incarnation}"
        return f"{SESSION_PREFIX}{lives}/{self.stream}"[:SESSION_ID_BYTES_MAX]


@dataclass(frozen=True, slots=True)
class MirrorStart:
    """Where a copy began, as the cursor of the consumer `CONSUMER` in the target keeps it."""

    session: str
    source_offset: int
    target_offset: int

    @property
    def difference(self) -> int:
        """The number by which an offset of the target is above that of its original."""
        return self.target_offset - self.source_offset

    @property
    def metadata(self) -> str:
        """The text that the cursor has beside the target's offset."""
        return f"{self.session} {self.source_offset}"

    @classmethod
    def parse(cls, target_offset: int, metadata: str | None) -> Self:
        """Return what a cursor says.

        Raises:
            OriginDiffers: no mirror has written it.
        """
        session, _, source_offset = (metadata or "").rpartition(" ")
        if not session.startswith(SESSION_PREFIX) or not source_offset.isdecimal():
            raise OriginDiffers(f"the target's cursor of {CONSUMER!r} is no mirror's: {ANOTHER_STREAM}")
        return cls(session, int(source_offset), target_offset)


CONSUMER: Final = "mirror"
"""Whose cursor in the target says where the copy began."""


@dataclass(frozen=True, slots=True)
class LastRecord:
    """The last record of the target, in so far as it tells of the copy."""

    session: str | None
    """That it was published in; None: in none."""
    sequence: int | None
    """Its number there: the source's offset after it."""


@dataclass(frozen=True, slots=True)
class TargetState:
    """The committed end of the target."""

    end: int
    last: LastRecord | None
    """None: it has no record, or no longer."""
    begun: MirrorStart | None
    """None: nothing has been copied into it, as far as its cursor says."""


@dataclass(frozen=True, slots=True)
class Resumption:
    """Where the copy goes on."""

    position: int
    """The source's offset of the next record."""
    start: MirrorStart
    witness: int
    """Where to read the source from: ``position``, or the record before it, of which the target's last one is
    to be a copy."""
    after: int
    """The number of the session's last message in the target: ``position``; 0: nothing is copied."""


def resumed(origin: Origin, source: CommittedRange, target: TargetState) -> Resumption:
    """Return where the copy of ``origin`` goes on.

    Raises:
        OriginDiffers: the target is a mirror of something else.
        OffsetsApart: the target has records behind the copy that are none of it, or has lost some before it.
        SourceTruncated: the target has more of the source than the source itself.
    """
    last, begun, session = target.last, target.begun, origin.session
    found = {begun.session if begun else None, last.session if last else None}
    if any(name is not None and name.startswith(SESSION_PREFIX) and name != session for name in found):
        raise OriginDiffers(
            f"the target is a mirror of another stream, or of an earlier life of {origin.stream!r}, or has "
            f"stored what was mirrored into another stream: {ANOTHER_STREAM}"
        )
    if last is not None and last.session == session and last.sequence is not None:
        return _behind(last.sequence, origin, source, target)
    if begun is None or target.end == begun.target_offset:
        return Resumption(source.start, MirrorStart(session, source.start, target.end), source.start, 0)
    position = target.end - begun.difference
    if last is not None or position < begun.source_offset:
        raise OffsetsApart(
            f"the target ends at offset {target.end} with a record that is not of the mirror, which began at "
            f"{begun.target_offset}: others have published to it, or it has lost records; {ANOTHER_STREAM}",
            difference=begun.difference,
            target_end=target.end,
        )
    _check_not_beyond(position, origin, source)
    return Resumption(position, begun, position, position)


def _behind(position: int, origin: Origin, source: CommittedRange, target: TargetState) -> Resumption:
    """Return where the copy goes on behind its own last record, which says the difference of offsets itself.

    A cursor that says another one is of a process that was overtaken before it had published anything. Its
    successor is below the end: with that as the beginning, nothing would seem to be copied.
    """
    _check_not_beyond(position, origin, source)
    start, difference = target.begun, target.end - position
    if start is None or start.difference != difference:
        start = MirrorStart(origin.session, position - 1, target.end - 1)
    return Resumption(position, start, position - 1 if position > source.start else position, position)


def _check_not_beyond(position: int, origin: Origin, source: CommittedRange) -> None:
    if position > source.end:
        raise source_truncated(origin.stream, position, f"it ends at {source.end}")


def check_first_refusal(
    error: SequenceGap | SessionExpired, resumption: Resumption, *, is_empty: bool
) -> None:
    """Refuse to go on unless the session has only expired behind a copy that is there to be seen.

    Args:
        error: the refusal of the first message of an attempt, which named ``resumption.after``.
        resumption: where the attempt began.
        is_empty: the target has no record any more, so that only its end and a cursor tell of the copy.

    Raises:
        OffsetsApart: the target has records of others at its end, or nobody can tell whether it has.
        SequencePassed: another process has copied meanwhile.
    """
    if isinstance(error, SequenceGap):
        known, after = named_last(error), resumption.after
        if known > after:
            raise SequencePassed(
                f"another process has copied up to offset {known} of the source, not {after}",
                last_sequence=known,
            ) from error
        raise OffsetsApart(
            f"the target ends where offset {after} of the source would come next, but has it up to {known}: "
            f"others have published to it; {ANOTHER_STREAM}"
        ) from error
    if is_empty:
        raise OffsetsApart(
            "the target has no record any more, and has forgotten the mirror's session: nobody can tell "
            f"whether its last records were of the mirror; {ANOTHER_STREAM}"
        ) from error


def check_dense(batch: pa.RecordBatch, position: int) -> None:
    """Refuse records of the source that do not follow each other from ``position`` on; there is one at least.

    Raises:
        OffsetsApart: some are missing.
    """
    first, last = batch.column(0)[0].as_py(), batch.column(0)[-1].as_py()
    if first != position or last - first + 1 != batch.num_rows:
        raise _compacted(position, last)


def check_reached(position: int, end: int | None) -> None:
    """Refuse an end of the copy at ``position`` below the wanted ``end`` of the source, if there is one.

    Raises:
        OffsetsApart: the records between were removed by compaction.
    """
    if end is not None and position < end:
        raise _compacted(position, end - 1)


def _compacted(position: int, last: int) -> OffsetsApart:
    return OffsetsApart(
        f"the source has no record at every offset from {position} to {last}: it is compacted, and a mirror "
        "keeps offsets",
        position=position,
    )


def source_truncated(stream: str, position: int, reason: str) -> SourceTruncated:
    """Return the error of a mirror whose next record is not in the source."""
    return SourceTruncated(
        f"the source {stream!r} cannot be read on at offset {position}: {reason}; {ANOTHER_STREAM}",
        position=position,
    )


def may_try_again(error: JetstreamError, position: int, failed_at: int | None) -> bool:
    """Return whether a copy that has ended by an error is taken up again from the target's end.

    A definite refusal is met with one more attempt at each position: if another process has copied meanwhile,
    or if the streams are others by now, the target and the source tell before anything is published.

    Args:
        error: why it has ended.
        position: up to which the copy is known to be stored.
        failed_at: the position at the last definite refusal; None: there was none.
    """
    if isinstance(error, OffsetsApart | OriginDiffers):
        return False
    return error.retriable or isinstance(error, Fenced) or position != failed_at
