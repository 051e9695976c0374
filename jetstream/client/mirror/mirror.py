"""Copies a stream of one cluster into a stream of another, and goes on exactly where the copy is.

Theory of operation: each attempt asks the target how far the copy is (`resumed`), reads the source from
there, and publishes in batch envelopes: messages of one session, each of which is stored only where it
belongs. An attempt that fails is followed by another one, which asks anew. So it does not matter when and how
often a process dies, or whether an old one comes back to life: what it then sends does not fit any more.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from envelope.errors import (
    DivergedHistory,
    InvalidSubject,
    JetstreamError,
    OffsetForgotten,
    OffsetOutOfRange,
    OffsetsApart,
    SequenceGap,
    SessionExpired,
    UnknownStream,
    Unsupported,
)
from envelope.limits import MIB
from envelope.subjects import covers, overlap
from envelope.types import Offset
from jetstream.client.admin.group_lag import CommittedRange
from jetstream.client.connection import JetstreamClient, ReadOptions
from jetstream.client.mirror.mirrored_rows import (
    are_few,
    are_named,
    check_witness,
    last_record,
    mirrored,
    singly,
)
from jetstream.client.mirror.positions import (
    CONSUMER,
    MirrorStart,
    Origin,
    Resumption,
    TargetState,
    check_dense,
    check_first_refusal,
    check_reached,
    group_of,
    may_try_again,
    resumed,
    source_truncated,
)
from jetstream.client.mirror.sole_instance import SoleInstance
from jetstream.client.nodes.background import beside
from jetstream.client.publish.batch_envelopes import Filled
from jetstream.client.publish.session_messages import SessionFuture
from jetstream.client.publish.session_publisher import SessionPublisher
from metadata.stream_config import StreamConfig

_WINDOW: Final = 4_000
"""Envelopes on their way: of one record, where subjects alternate; of full ones `_WINDOW_BYTES` are fewer."""
_WINDOW_BYTES: Final = 16 * MIB
_READ_ROWS: Final = 4_096
"""Smaller batches of the source are put together: what an envelope costs beside its records counts then."""
_BACKOFF_S: Final = 1.0
_NOT_COPIED: Final = {
    *("name", "subject", "partitions", "partition_by", "partition_of", "partition"),
    "group",  # would share the records with other streams
    *("record_bytes_max", "txid_max_step"),  # the source has checked them, and a copy has a header more
    "read_only",
}
"""Of the source's configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorSettings:
    """The streams of a copy, when it ends, and who is called meanwhile.

    Attributes:
        stream: of the source.
        to_stream: of the target; it is created if it is not there.
        once: end where the source ends when this begins.
        resumed: called where an attempt begins to copy.
        interrupted: called with an error that is followed by another attempt.
    """

    stream: str
    to_stream: str
    once: bool = False
    resumed: Callable[[Resumption], None] = lambda _resumption: None
    interrupted: Callable[[JetstreamError], None] = lambda _error: None


class _OwedAcks:
    """The acks that a copy waits for, in order.

    Attributes:
        failed: raises why the copy cannot go on, as soon as that is known.
    """

    def __init__(self, difference: int, copied: Callable[[int], None]) -> None:
        """``copied`` is called with each offset of the source up to which everything is stored."""
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._difference = difference
        self._copied = copied
        self._owed: deque[tuple[SessionFuture, int]] = deque()

    def add(self, future: SessionFuture, end: int) -> None:
        """Wait for the ack of records that end before the source's offset ``end``."""
        self._owed.append((future, end))
        future.add_done_callback(self._settle)

    def check(self) -> None:
        """Raise why the copy has failed, now that the session has nothing to send; else all are acked."""
        self._settle(None)
        if self.failed.done():
            self.failed.result()
        assert not self._owed, "C33: a session that is flushed owes no ack"

    def _settle(self, _: object) -> None:
        while self._owed and self._owed[0][0].done() and not self.failed.done():
            future, end = self._owed.popleft()
            error = future.exception()
            if error is not None:
                self.failed.set_exception(error)
                return
            offset = future.result().offset
            if offset is None:  # of another process, which another attempt is to look at
                self.failed.set_exception(
                    OffsetForgotten(f"source offset {end - 1} is stored, and the target does not tell where")
                )
            elif offset != end - 1 + self._difference:
                self.failed.set_exception(OffsetsApart(f"source offset {end - 1} is stored at {offset}"))
            else:
                self._copied(end)


class Mirror:
    """Copies one stream; used once.

    Attributes:
        copied: the source's offset up to which everything is stored in the target.

    Invariants:
        C33: the target's records from the copy's beginning on are the source's, in order, each once.
            Held by test_a_mirror_that_is_killed_again_and_again_copies_each_record_once.
        C34: nothing is published into the target but where it belongs: between the same neighbours.
            Held by test_random_kills_neither_lose_nor_double_a_record.
    """

    def __init__(self, source: JetstreamClient, target: JetstreamClient, settings: MirrorSettings) -> None:
        """Nothing is asked before `run`."""
        self.copied = 0
        self._source = source
        self._target = target
        self._settings = settings
        self._end: int | None = None
        """With ``once``: the source's offset at which the copy ends."""

    @property
    def stream(self) -> str:
        """The source's name."""
        return self._settings.stream

    async def run(self) -> None:
        """Copy until cancelled, or with ``once`` up to the source's present end.

        Retriable errors are raised until the target is known to be there; later ones are met with another
        attempt.

        Raises:
            UnknownStream: there is no source.
            Unsupported: the source is partitioned.
            InvalidSubject: the target does not bind the subjects of the source, or another stream beside it
                does, and would store what is mirrored.
            OriginDiffers, OffsetsApart, SourceTruncated: the copy cannot go on; see there.
            JetstreamError: the target refuses a record for good, or to be created.
        """
        target: str | None = await self._prepared()
        failed_at: int | None = None
        while True:
            try:
                target = target or await self._prepared()
                instance = SoleInstance(self._source, self.stream, group_of(self.stream, target))
                async with instance.owned(lambda: self.copied):
                    await self._copy()
            except JetstreamError as error:
                if not may_try_again(error, self.copied, failed_at):
                    raise
                target, failed_at = None, failed_at if error.retriable else self.copied
                self._settings.interrupted(error)
                await asyncio.sleep(_BACKOFF_S)
            else:
                return

    async def _prepared(self) -> str:
        """Make sure that there is a target; return its incarnation."""
        settings = self._settings
        source = await self._source.streams.info(settings.stream)
        if source.config.partition_of is not None:
            raise Unsupported(f"{settings.stream!r} is a partition: a mirror copies streams that are not")
        try:
            twin = await self._target.streams.info(settings.stream)
        except UnknownStream:
            twin = None
        if twin is not None and twin.incarnation == source.incarnation:
            raise Unsupported(
                f"{settings.stream!r} is in the target's cluster itself: what a mirror publishes would come "
                "back to it"
            )
        await self._check_alone(source.config.subject)
        try:
            target = await self._target.streams.info(settings.to_stream)
        except UnknownStream:
            config = source.config
            target = await self._target.streams.create(
                settings.to_stream, config.subject, partitions=None, **_copied_config(config)
            )
        if not covers(target.config.subject, source.config.subject):
            raise InvalidSubject(
                f"{settings.to_stream!r} binds {target.config.subject!r}, which does not have all of the "
                f"source's {source.config.subject!r}"
            )
        return target.incarnation

    async def _check_alone(self, subject: str) -> None:
        """Refuse to publish on ``subject`` while others than the target would store that, too."""
        for other in await self._target.streams.list():
            if other.name == self._settings.to_stream or not overlap(other.subject, subject):
                continue
            try:
                config = (await self._target.streams.info(other.name)).config
            except UnknownStream:  # deleted since
                continue
            if not config.read_only:
                raise InvalidSubject(
                    f"{other.name!r} of the target's cluster binds {config.subject!r}, and would store what "
                    f"is mirrored on {subject!r}: make it read-only, or give it another subject"
                )

    # --- one attempt --------------------------------------------------------------------------------------

    async def _copy(self) -> None:
        """Copy from where the target is, to the end that there may be."""
        source, resumption, last = await self._resumption()
        self.copied = resumption.position
        if self._settings.once:
            self._end = source.end if self._end is None else self._end
        self._settings.resumed(resumption)
        try:
            await self._publish(source.incarnation, resumption, last, resumption.after)
        except (SequenceGap, SessionExpired) as error:
            if self.copied != resumption.position:
                raise
            check_first_refusal(error, resumption, is_empty=last is None)
            await self._publish(source.incarnation, resumption, last, 0)

    async def _publish(
        self, incarnation: str, resumption: Resumption, last: pa.RecordBatch | None, after: int
    ) -> None:
        """Read on in the source's life ``incarnation``, and publish behind the session's number ``after``."""
        stream = self._settings.stream
        acks = _OwedAcks(resumption.start.difference, self._has_copied)
        pump = _Pump(resumption, last, acks)
        end = None if self._end is None else max(self._end, pump.position)
        if pump.first == end:
            return
        try:
            async with (
                self._source.read_batches(
                    stream,
                    start=pump.first,
                    end=end,
                    follow=True,
                    incarnation=incarnation,
                    batch_rows=_READ_ROWS,
                ) as batches,
                self._target.session(
                    resumption.start.session,
                    stream=self._settings.to_stream,
                    derived=True,
                    after=after,
                    window=_WINDOW,
                    window_bytes=_WINDOW_BYTES,
                ) as session,
                beside(_raised(acks.failed)),  # inside, so that the session's end fails nothing any more
            ):
                async for batch in batches:
                    await pump.publish(batch, session)
                await session.flush()
                acks.check()
        except (OffsetOutOfRange, DivergedHistory) as error:
            raise source_truncated(stream, pump.position, error.description) from error
        assert self.copied == pump.position, f"C33: {pump.position} is published, {self.copied} acked"
        check_reached(pump.position, self._end)

    def _has_copied(self, end: int) -> None:
        self.copied = end

    async def _resumption(self) -> tuple[CommittedRange, Resumption, pa.RecordBatch | None]:
        """Return the source, where the copy goes on, and the target's last record.

        It returns once the target's cursor says where the copy began.
        """
        name = self._settings.to_stream
        target = await _range_of(self._target, name)
        last: pa.RecordBatch | None = None
        if target.end > target.start:
            end = Offset(target.end)
            place = ReadOptions(start=end - 1, end=end, incarnation=target.incarnation, read_from="leader")
            rows = (await self._target.read_table(name, **place)).combine_chunks().to_batches()
            last = rows[0] if rows else None
        cursor = await self._target.cursors.get(CONSUMER, name)
        begun: MirrorStart | None = None
        if cursor.offset is not None and cursor.incarnation == target.incarnation:
            begun = MirrorStart.parse(cursor.offset, cursor.metadata)
        state = TargetState(target.end, None if last is None else last_record(last), begun)
        # After the target: what that has of it has been there before.
        source = await _range_of(self._source, self.stream)
        resumption = resumed(Origin(self.stream, source.incarnation, target.incarnation), source, state)
        start = resumption.start
        if start != begun:
            await self._target.cursors.commit(
                CONSUMER, name, start.target_offset, metadata=start.metadata, incarnation=target.incarnation
            )
        return source, resumption, last


class _Pump:
    """Publishes the records of the source in one session, each where it belongs.

    Attributes:
        first: the source's offset to read from: of the last record that is copied, to compare it.
        position: the source's offset of the next record to be published.
    """

    def __init__(self, resumption: Resumption, last: pa.RecordBatch | None, acks: _OwedAcks) -> None:
        self.position = resumption.position
        self.first = resumption.witness
        self._difference = resumption.start.difference
        self._last = last
        self._acks = acks

    async def publish(self, batch: pa.RecordBatch, session: SessionPublisher) -> None:
        """Publish the records of a batch; returns when all are on their way."""
        if batch.column(0)[0].as_py() < self.position:
            assert self._last is not None, "what is read once more is compared"
            check_witness(batch.slice(0, 1), self._last)
            batch = batch.slice(1)
        if not batch.num_rows:
            return
        check_dense(batch, self.position)
        is_named = are_named(batch)
        for subject, rows in mirrored(batch):
            is_single = are_few(rows) and (is_named or are_named(rows))
            for envelope in singly(rows) if is_single else session.envelopes(subject, rows):
                end = self.position + (envelope.records if isinstance(envelope, Filled) else 1)
                acked = await session.publish(
                    subject,
                    envelope,
                    sequence=end,
                    expected_last_sequence=self.position + self._difference,
                    ack="all",
                )
                self._acks.add(acked, end)
                self.position = end


async def _raised(failed: "asyncio.Future[None]") -> None:
    await failed


async def _range_of(client: JetstreamClient, stream: str) -> CommittedRange:
    ranges = await client.ranges([stream])
    if stream not in ranges:
        raise UnknownStream(f"there is no stream {stream!r}")
    return ranges[stream]


def _copied_config(config: StreamConfig) -> dict[str, object]:
    """Return the settings that a target has of its source, without defaults: versions may have others."""
    return config.model_dump(mode="json", exclude=_NOT_COPIED, exclude_defaults=True)
