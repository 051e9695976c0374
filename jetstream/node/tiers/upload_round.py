"""A round of uploads, retention and cleaning up for one stream that this node leads."""

import asyncio
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol

from envelope.errors import (
    CorruptDataError,
    Fenced,
    JetstreamError,
    OffsetOutOfRange,
    StreamOffline,
    TierUnavailable,
    UnavailableError,
)
from envelope.types import Compact, Incarnation, LeaderEpoch, MonotonicNs, Offset, StreamName
from jetstream.log.log import Log
from jetstream.log.segments.retention import Retained, retained_start
from jetstream.log.segments.segment import Segment
from jetstream.node.disk.open_log import total_retention
from jetstream.node.runtime.removal_clock import RemovalClock
from jetstream.node.tiers.segment_cache import Tier
from jetstream.node.tiers.tiered_stream import TieredStream
from jetstream.tier.manifest import TieredSegment, TierManifest
from jetstream.tier.retries import FailedAttempts
from jetstream.tier.selection import UploadBounds, damage_in_the_way, due_segments
from jetstream.tier.upload import collect, upload_manifest, upload_segment
from metadata.catalog.directories import directory_of
from metadata.catalog.tables import TierMark
from metadata.stream_config import StreamConfig

SEGMENTS_AT_ONCE: Final = 8
"""Uploaded for one manifest; the next ones follow at once."""
SILENT_NS: Final = 30_000_000_000
"""A call of the store in which nothing moves for so long is reported; it is waited for all the same."""
_ATTEMPTS: Final = 40
_PAUSE_SECONDS: Final = 0.05


class TieredReign(Protocol):
    """A reign of this node's over a stream."""

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """Of the reign."""

    @property
    def last_txid(self) -> int | None:
        """The stream's last txid."""

    async def truncate_before(self, offset: Offset) -> None:
        """Let the log begin at ``offset``, durably."""


class LedStream(Protocol):
    """A stream, as far as its leader's work for the object store goes."""

    @property
    def name(self) -> StreamName:
        """Its name."""

    @property
    def incarnation(self) -> Incarnation:
        """Which life of the name it is."""

    @property
    def config(self) -> StreamConfig:
        """In force here."""

    @property
    def log(self) -> Log:
        """Its log here."""

    @property
    def leads(self) -> bool:
        """Whether this node leads it now, by its lease."""

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """The newest reign that is known here."""

    @property
    def high_watermark(self) -> Offset:
        """First offset that is not known here to be committed."""

    @property
    def leading(self) -> TieredReign | None:
        """The reign, while this node leads."""

    @property
    def tiered(self) -> TieredStream:
        """Its part in the object store."""


@dataclass(slots=True)
class TierProgress:
    """The progress of this node's work at one stream, in one reign.

    Attributes:
        leader_epoch: of the reign.
        failed: the last attempts, if they failed; another one is made when their pause is over.
        is_certain: the catalogue has answered this reign's last proposal. Otherwise a manifest that is not
            in force yet may come to be.
        has_orphans: there may be objects that nothing names.
        damage: of the log here, that uploads wait for.
    """

    leader_epoch: LeaderEpoch
    failed: FailedAttempts | None = None
    is_certain: bool = True
    has_orphans: bool = True
    damage: JetstreamError | None = None

    @property
    def problem(self) -> JetstreamError | None:
        """Why what is to be uploaded is not, as far as the store answers; None: it is."""
        return self.failed.error if self.failed is not None else self.damage

    def is_due(self, now: MonotonicNs) -> bool:
        """Return whether there is to be an attempt."""
        return self.failed is None or self.failed.again_at <= now


def silence(since: MonotonicNs, now: MonotonicNs) -> TierUnavailable | None:
    """Return the error of a store that has done nothing ``since``; None: not yet."""
    if now - since < SILENT_NS:
        return None
    return TierUnavailable(f"the object store has not answered for {(now - since) // 10**9} s: uploads wait")


@dataclass(frozen=True, slots=True)
class TierTurn:
    """A round; ``run`` may be called again."""

    stream: LedStream
    progress: TierProgress
    tier: Tier
    clock: RemovalClock

    async def run(self) -> bool:
        """Do what is due; return whether more is.

        Raises:
            StreamOffline, Fenced: this node does not lead any more.
            JetstreamError: the store, the disk or the catalogue refused.
        """
        mark = await self._begun()
        manifest = await self._manifest(mark)
        if not self._holds(mark):
            return True
        mark = await self._let_go(mark, manifest)
        if not self._holds(mark):
            return True
        due = self._due(mark)
        uploaded = await self._all_uploaded(due[:SEGMENTS_AT_ONCE])
        if not self._holds(mark):
            return True
        unchanged = self._unchanged(due, uploaded)
        if unchanged or manifest.start != mark.start:  # also within a segment: a restore begins at the list's
            await self._advance(mark, manifest, unchanged)
        await self._collect()
        self.progress.failed = None
        return len(due) > SEGMENTS_AT_ONCE

    async def retain(self) -> None:
        """Apply retention alone, and ask the store for nothing; not before its list of segments is here.

        Raises:
            StreamOffline, Fenced: this node does not lead any more.
            JetstreamError: the disk or the catalogue refused.
        """
        mark = await self._begun()
        manifest = self._known_manifest(mark)
        if manifest is not None and self._holds(mark):
            await self._let_go(mark, manifest)

    @property
    def _directory(self) -> str:
        return directory_of(self.stream.name, self.stream.incarnation)

    @property
    def _epoch(self) -> LeaderEpoch:
        return self.progress.leader_epoch

    def _check(self) -> None:
        """Raise StreamOffline unless this node still leads in the reign that it began to work in.

        A stream that was deleted is led until all is written; what is put into the store then stays for ever.
        """
        stream = self.stream
        if stream.tiered.is_over or not stream.leads or stream.leader_epoch != self._epoch:
            raise StreamOffline("this node leads it no more")

    def _holds(self, mark: TierMark) -> bool:
        """Return whether a mark from before a wait still holds: an operator may have truncated the stream.

        Raises:
            StreamOffline: this node leads no more, and the log may even be closed.
        """
        self._check()
        return self.stream.tiered.mark == mark and mark.end >= self.stream.log.log_start_offset

    async def _begun(self) -> TierMark:
        """Return the mark that is in force; the first one says that there is nothing yet.

        So there are no objects of a stream that the catalogue does not know to have any.
        """
        self._check()
        mark, log = self.stream.tiered.mark, self.stream.log
        if mark is None:
            return await self.stream.tiered.advance(
                self._epoch, TierMark(1, log.log_start_offset, log.log_start_offset)
            )
        if mark.end < log.log_start_offset:  # removed for good while it was not uploaded
            return await let_go_before(self.stream, mark, log.log_start_offset)
        if mark.start > log.log_start_offset:  # a crash came between the two
            return await let_go_before(self.stream, mark, mark.start)
        return mark

    async def _manifest(self, mark: TierMark) -> TierManifest:
        known = self._known_manifest(mark)
        if known is None:
            assert mark.manifest is not None, "otherwise it is known"
            known = await self.tier.manifest(mark.manifest)
            self.stream.tiered.take(mark.manifest, known)
        return known

    def _known_manifest(self, mark: TierMark) -> TierManifest | None:
        """Return the list that is in force, None if it has to be read first."""
        known = self.stream.tiered.manifest
        if known is not None or mark.manifest is not None:
            return known
        return TierManifest(
            name=self.stream.name,
            incarnation=self.stream.incarnation,
            version=mark.version,
            leader_epoch=self._epoch,
            written_at=self.clock.clock.wall(),
            config=self.stream.config,
            start=mark.end,
            end=mark.end,
            epochs=(),
        )

    async def _let_go(self, mark: TierMark, manifest: TierManifest) -> TierMark:
        """Move the stream's start as its retention says; return the mark that is in force then."""
        stream, segments = self.stream, self.stream.log.reader.segments
        local = [segment for segment in segments if segment.next > mark.end] or segments[-1:]
        held: list[Retained] = [*manifest.kept(mark.start), *local]
        rules = total_retention(stream.config)
        now = self.clock.wall_for(stream.log.found_until)
        start = retained_start(held, stream.high_watermark, now, rules)
        return mark if start <= mark.start else await let_go_before(stream, mark, start)

    def _due(self, mark: TierMark) -> tuple[Segment, ...]:
        """Return what is to be uploaded, and note the damage that is in its way."""
        log, config, progress = self.stream.log, self.stream.config, self.progress
        cleaned_end = log.compaction.cleaned_end if config.compact is Compact.KEY else None
        rewritten_end = None if log.writer.config.rewrite_after_us is None else log.rewritten_end
        bounds = UploadBounds(self.stream.high_watermark, cleaned_end, rewritten_end)
        progress.damage = None
        if not config.tier:
            return ()
        damaged = damage_in_the_way(log.reader.segments, mark.end, bounds, log.reader.corrupt_ranges)
        if damaged is not None:
            progress.damage = CorruptDataError(
                f"uploads wait for a repair: offsets {damaged.base} to {damaged.next} are damaged here"
            )
        return due_segments(log.reader.segments, mark.end, bounds, log.reader.corrupt_ranges)

    async def _all_uploaded(self, due: tuple[Segment, ...]) -> list[TieredSegment]:
        """Upload up to the first segment that is gone: it was truncated or rewritten meanwhile."""
        uploaded: list[TieredSegment] = []
        for segment in due:
            try:
                uploaded.append(await self._uploaded(segment))
            except UnavailableError:
                self._check()
                if segment in self.stream.log.reader.segments:
                    raise
                break
        return uploaded

    async def _uploaded(self, segment: Segment) -> TieredSegment:
        self._check()
        self.progress.has_orphans = True
        uploaded = await self.tier.write(
            lambda store: upload_segment(store, self._directory, segment, self._epoch)
        )
        self.tier.counters.moved("uploaded", uploaded)
        return uploaded

    def _unchanged(
        self, due: tuple[Segment, ...], uploaded: list[TieredSegment]
    ) -> tuple[TieredSegment, ...]:
        """Return what was uploaded up to the first segment that has been rewritten meanwhile."""
        now = self.stream.log.reader.segments
        count = next((row for row, segment in enumerate(due) if segment not in now), len(due))
        return tuple(uploaded[:count])

    async def _advance(
        self, mark: TierMark, manifest: TierManifest, uploaded: tuple[TieredSegment, ...]
    ) -> None:
        """Put a manifest in force that lists what was uploaded, and no more what is let go."""
        stream, progress = self.stream, self.progress
        advanced = replace(
            manifest.advanced(mark, uploaded, stream.log.reader.epochs),
            name=stream.name,
            incarnation=stream.incarnation,  # of a stream that was made again the list is an earlier life's
            leader_epoch=self._epoch,
            written_at=self.clock.clock.wall(),
            config=stream.config,
        )
        self._check()
        progress.has_orphans = True
        path = await self.tier.write(lambda store: upload_manifest(store, self._directory, advanced))
        self._check()
        progress.is_certain = False
        txids = [segment.last_txid for segment in uploaded if segment.last_txid is not None]
        await stream.tiered.advance(
            self._epoch,
            TierMark(
                version=mark.version + 1,
                start=mark.start,
                end=advanced.end,
                last_epoch=advanced.last_epoch or mark.last_epoch,
                last_txid=self._no_larger(txids[-1] if txids else mark.last_txid),
                manifest=path,
            ),
        )
        progress.is_certain = True
        stream.tiered.take(path, advanced)

    def _no_larger(self, txid: int | None) -> int | None:
        """Return a segment's largest txid, or the stream's last one: that may have been set to less."""
        leading = self.stream.leading
        last = None if leading is None else leading.last_txid
        return txid if txid is None or last is None else min(txid, last)

    async def _collect(self) -> None:
        """Delete the objects that nothing names; what a proposal without an answer may name stays."""
        if not self.progress.has_orphans or not self.progress.is_certain:
            return
        mark, manifest = self.stream.tiered.mark, self.stream.tiered.manifest
        assert mark is not None, "there is one before there are objects"
        kept = {segment.path for segment in manifest.segments} if manifest is not None else set()
        if mark.manifest is not None:
            if manifest is None:
                return  # another mark has come meanwhile
            kept.add(mark.manifest)
        self._check()
        deleted = await self.tier.write(partial(collect, self._directory, kept, self._epoch))
        self.tier.counters.objects["deleted"] += deleted
        self.progress.has_orphans = False


async def let_go_before(stream: LedStream, mark: TierMark, start: Offset) -> TierMark:
    """Move the stream's start to ``start``, durably; return the mark that is in force then.

    The catalogue says so first: what it does not name any more is no reader's.

    Raises:
        JetstreamError: the catalogue or the disk refused; perhaps some of it is done.
    """
    leading = stream.leading
    if leading is None:
        raise StreamOffline(f"stream {stream.name} is not led by this node")
    if start > mark.start:
        end = max(mark.end, start)
        last_epoch = mark.last_epoch if end == mark.end else stream.log.reader.epoch_at(Offset(start - 1))
        changed = replace(mark, version=mark.version + 1, start=start, end=end, last_epoch=last_epoch)
        mark = await stream.tiered.advance(leading.leader_epoch, changed)
    await leading.truncate_before(start)
    return mark


async def truncate_before(stream: LedStream, offset: Offset) -> None:
    """Remove records before an offset wherever they lie, durably.

    Raises:
        OffsetOutOfRange: it is beyond the high watermark.
        JetstreamError: as `let_go_before`.
    """
    if offset > stream.high_watermark:
        raise OffsetOutOfRange(
            f"cannot truncate before {offset}: the high watermark is {stream.high_watermark}",
            offset=offset,
            high_watermark=stream.high_watermark,
        )
    for _ in range(_ATTEMPTS):
        leading, mark = stream.leading, stream.tiered.mark
        if leading is None:
            break
        if mark is None:
            await leading.truncate_before(offset)
            return
        try:
            await let_go_before(stream, mark, offset)
        except Fenced as error:
            if "tier_version" not in error.detail:
                raise
            await asyncio.sleep(_PAUSE_SECONDS)  # an upload came first, and is about to be heard of
        else:
            return
    raise StreamOffline(f"stream {stream.name} is not led by this node, or is being uploaded")
