"""A stream in the object store: the catalogue's mark, and the manifest that it names."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from envelope.errors import JetstreamError, TierUnavailable
from envelope.types import NO_OFFSET, LeaderEpoch, NodeId, Offset
from jetstream.log.reader import LogReader
from jetstream.log.search import batches_within, offset_for_txid
from jetstream.log.segments.index import StoredBatches
from jetstream.log.state.epochs import EpochHistory
from jetstream.node.tiers.segment_cache import Tier
from jetstream.tier.manifest import TierManifest
from jetstream.tier.retries import FailedAttempts
from jetstream.tier.tiered_log import SegmentAway, TieredLog
from metadata.catalog.commands import AdvanceTier, Command
from metadata.catalog.tables import Stream, TierMark, TxidSet
from metadata.node.catalogue.replicated_catalog import Applied

_log = logging.getLogger(__name__)

Readable = LogReader | TieredLog
Propose = Callable[[Command], Awaitable[Applied]]
"""Has a command applied by the catalogue."""


class TieredStream:
    """Changed by the catalogue's rows; owned by the loop's thread, other threads read mark and manifest.

    Attributes:
        mark: the newest that was heard of.
        manifest: what ``mark`` names, once somebody has asked for it.
        problem: why uploads fail now; None: they do not, as far as is known here.
        is_over: this node's replica is to be removed: its objects may be, and no more are to come.
    """

    def __init__(self, row: Stream, tier: Tier, node_id: NodeId, propose: Propose) -> None:
        self.mark: TierMark | None = row.tier
        self.manifest: TierManifest | None = None
        self.problem: JetstreamError | None = None
        self.is_over = False
        self._tier = tier
        self._row = row
        self._node_id = node_id
        self._propose = propose
        self._loading: asyncio.Task[None] | None = None
        self._failed: FailedAttempts | None = None

    def changed(self, row: Stream) -> None:
        """Handle the catalogue's newest row."""
        self._row = row
        self._heard_of(row.tier)

    def _heard_of(self, mark: TierMark | None) -> None:
        before = self.mark
        if mark is None or (before is not None and before.version >= mark.version):
            return  # marks only advance
        self.mark = mark
        if before is None or before.manifest != mark.manifest:
            self.manifest = None

    async def advance(self, leader_epoch: LeaderEpoch, mark: TierMark) -> TierMark:
        """Put ``mark`` in force in the catalogue, and return it.

        Raises:
            Fenced: this node leads no more, or another mark came first.
            JetstreamError: nobody knows whether it is in force.
        """
        command = AdvanceTier(self._row.name, self._row.incarnation, self._node_id, leader_epoch, mark)
        (await self._propose(command)).answer()
        self._heard_of(mark)
        return mark

    def search_start(self, txid: int, log: LogReader) -> Offset:
        """Return where to begin to look for a txid in the stream, whose log this is."""
        return search_start(txid, self._row.txid_set, log.epochs)

    @property
    def border(self) -> Offset | None:
        """The offset below which nothing is rewritten here; None: the stream has no tier."""
        if self.mark is not None:
            return self.mark.end
        return Offset(0) if self._row.config.tier else None

    def view(self, log: LogReader, *, leads: bool) -> Readable:
        """Return the stream as it can be read here, across both places."""
        if self.border is None:
            return log
        return TieredLog(log=log, tier=self, leads=leads, held=self._tier.held, used=self._tier.look_ahead)

    def is_moving(self, away: SegmentAway) -> bool:
        """Return whether what is away is on its way here, and moves."""
        return away.wanted is not None and self._tier.is_moving(away.wanted)

    def bring_in(self, away: SegmentAway) -> "asyncio.Task[None]":
        """Begin to bring in what was away; done when it has been tried, and can be asked for again.

        Raises:
            TierUnavailable: the store did not give it a moment ago, or this node has not heard of it yet.
        """
        if away.wanted is not None:
            return self._tier.bring_in(away.wanted)
        if self.mark is None or self.mark.manifest is None or self.manifest is not None:
            raise TierUnavailable("this node has not heard yet where in the object store these offsets are")
        if self._loading is None:
            self._tier.refuse_for_now(self._failed)
            self._loading = self._tier.begin(self._load(self.mark.manifest))
        return self._loading

    async def _load(self, path: str) -> None:
        try:
            self.take(path, await self._tier.manifest(path))
            self._failed = None
        except TierUnavailable as error:
            _log.warning("list of segments not read path=%s error=%s runbook=RB-11", path, error)
            self._failed = self._tier.failed_now(self._failed, error)
        finally:
            self._loading = None

    def take(self, path: str, manifest: TierManifest) -> None:
        """Keep a list if it is the one that the mark names."""
        if self.mark is not None and self.mark.manifest == path:
            self.manifest = manifest


def search_start(txid: int, txid_set: TxidSet | None, epochs: EpochHistory) -> Offset:
    """Return where to begin to look for a txid: one above what an operator set is not before that.

    Records before it that have a larger one do not count; up to the one that was set, txids rise across it.
    """
    if txid_set is None or txid <= txid_set.txid:
        return NO_OFFSET
    # A later reign may have begun below, in a log that an unclean election made shorter.
    later = (begun.start for begun in epochs.starts if begun.epoch > txid_set.leader_epoch)
    return min(txid_set.offset, next(later, txid_set.offset))


def first_with_txid(readable: Readable, txid: int, start: Offset) -> Offset:
    """Return the first offset from ``start`` on whose txid is at least ``txid``, wherever it lies."""
    if isinstance(readable, TieredLog):
        return readable.first_with_txid(txid, start)
    return offset_for_txid(readable, txid, start)


def stored_within(readable: Readable, offset: Offset, max_bytes: int, end: Offset) -> StoredBatches:
    """Return the batches from ``offset`` on that take ``max_bytes`` at most, wherever they lie."""
    if isinstance(readable, TieredLog):
        return readable.batches_within(offset, max_bytes, end)
    return batches_within(readable, offset, max_bytes, end)
