"""The driver's requests to the cluster: logs, their committed ranges, the offset of a moment."""

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from envelope.errors import (
    JetstreamError,
    NoResponders,
    OffsetOutOfRange,
    StreamRecreated,
    Unauthorized,
    UnknownStream,
)
from envelope.limits import ENVELOPE_RECORDS_MAX
from envelope.partition_errors import StreamIsPartitioned
from envelope.types import Compact
from jetstream.client.blocking.client import BlockingClient
from jetstream.client.nodes.socket_access import ReadPass
from jetstream.client.read.places import Start
from jetstream.spark.options.source_options import SourceOptions
from jetstream.spark.reading.pieces import pieces_of
from jetstream.spark.reading.planning import IncarnationRange, StreamBounds

_log = logging.getLogger(__name__)

CUTS_MAX: Final = 64
"""Beyond it ranges are cut anywhere: to ask where a batch ends takes about as long as to fetch it twice."""

LOOK_S: Final = 10.0
"""How old the list of logs may be: partitions are added, and streams come that a pattern names."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST_US: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)


class SourceLog(NamedTuple):
    """A log that a query reads."""

    stream: str
    """Of a partitioned stream the whole."""
    partition: int
    dense: bool
    """Every offset has a record: it is known not to be compacted."""


class Cluster:
    """The streams of one query, as a client sees them."""

    def __init__(self, client: BlockingClient, options: SourceOptions) -> None:
        self._client = client
        self._options = options
        self._logs: dict[str, SourceLog] = {}
        self._looked_at = -LOOK_S
        self._may_ask_nats = True
        """Until it is known that NATS does not let us ask what a stream is."""

    @property
    def logs(self) -> Mapping[str, SourceLog]:
        """The logs that the query reads, by their names, as they were for `bounds` or `missing`."""
        return self._logs

    def missing(self) -> list[str]:
        """Return the streams that the options name and that are not there."""
        self._look()
        return self._missing()

    def _look(self) -> None:
        """Refresh the list of logs if it is older than `LOOK_S`.

        While no node can be asked for it, the last list is used: the nodes of its logs report those that are
        gone.
        """
        if time.monotonic() - self._looked_at < LOOK_S and not self._missing():
            return
        try:
            self._logs = self._found()
        except JetstreamError as error:
            if not self._logs or not error.retriable:
                raise
            _log.warning("streams that have come since are not known yet: %s", error)
        self._looked_at = time.monotonic()

    def _missing(self) -> list[str]:
        found = {name for log, facts in self._logs.items() for name in (log, facts.stream)}
        return [name for name in self._options.streams or () if name not in found]

    def bounds(self) -> dict[str, StreamBounds]:
        """Return the committed range of each log now; those that are gone are left out."""
        self._look()
        ranges = self._ranges("earliest", list(self._logs))
        if len(ranges) < len(self._logs):
            self._looked_at = -LOOK_S
        return ranges

    def offsets_at(self, moments: Mapping[str, int]) -> dict[str, int]:
        """Return the offsets of the first records at or after these moments, or the ends of their logs.

        Args:
            moments: microseconds since the Unix epoch, by the names of logs.
        """
        together: defaultdict[int, list[str]] = defaultdict(list)
        for log, moment in moments.items():
            together[moment].append(log)
        return {
            log: bounds.start
            for moment, logs in together.items()
            for log, bounds in self._ranges(_datetime(moment), logs).items()
        }

    def boundary(self, of: IncarnationRange, max_bytes: int) -> int:
        """Return up to where a range has at most so many bytes, as they are stored; one batch in any case.

        A start that is gone is no error here: the reader of the range finds it, and decides.
        """
        try:
            subject = self._options.subject
            return self._client.boundary(of.stream, of.start, max_bytes, of.incarnation, subject=subject)[0]
        except (OffsetOutOfRange, StreamRecreated, UnknownStream):
            return of.end

    def read_pass(self, log: str) -> ReadPass | None:
        """Return what a task needs to read a log without NATS; None: it gets that by itself.

        Raises:
            Unauthorized: NATS gives no ticket for that.
            JetstreamError: the cluster cannot be asked.
        """
        if self._options.executor_nats or not self._options.access.servers:
            return None
        return self._client.read_pass(log, self._options.subject)

    def pieces_by_offsets(self, ranges: Iterable[IncarnationRange]) -> list[IncarnationRange]:
        """Return the ranges in as many pieces as the options want; the same ranges always in the same pieces.

        Raises:
            InvalidOption: they would be too many.
        """
        return self._cut(ranges, self._options.min_partitions)

    def pieces_by_batches(self, ranges: Iterable[IncarnationRange]) -> list[IncarnationRange]:
        """Return as many pieces, cut between batches where one ends nearby, as they are stored now.

        Raises:
            InvalidOption: they would be too many.
            JetstreamError: a log cannot be asked.
        """
        whole = {each.stream: each for each in ranges}
        rough = self.pieces_by_offsets(whole.values())
        if not 0 < len(rough) - len(whole) <= CUTS_MAX:
            return rough
        counts = Counter(each.stream for each in rough)
        return [piece for stream, each in whole.items() for piece in self._pieces(each, counts[stream])]

    def _pieces(self, rest: IncarnationRange, count: int) -> Iterator[IncarnationRange]:
        while True:
            first, *others = self._cut([rest], count)
            if not others:
                yield first
                return
            nearby = first.end - min(first.size // 8, ENVELOPE_RECORDS_MAX)
            boundary = self.boundary(first._replace(start=nearby), 1)
            end = min(boundary, first.end)
            yield first._replace(end=end)
            rest, count = rest._replace(start=end), max(count - 1, 1)

    def _cut(self, ranges: Iterable[IncarnationRange], count: int | None) -> list[IncarnationRange]:
        return pieces_of(ranges, min_partitions=count, max_records=self._options.max_records_per_partition)

    def _ranges(self, since: Start, logs: list[str]) -> dict[str, StreamBounds]:
        options = self._options
        found = self._client.ranges(logs, since, subject=options.subject, patience_s=options.fetch_timeout_s)
        return {log: StreamBounds(now.incarnation, now.start, now.end) for log, now in found.items()}

    def _found(self) -> dict[str, SourceLog]:
        if not self._options.access.servers:
            return self._by_names(set(self._client.stream_names()))
        if self._options.streams is not None:
            names = set(self._options.streams)
        else:
            listed = self._client.streams.list()
            names = {each.name for each in listed if self._options.wants(each.name, each.partition_of)}
        return {log: facts for name in sorted(names) for log, facts in self._logs_of(name).items()}

    def _by_names(self, names: set[str]) -> dict[str, SourceLog]:
        """Return the logs by the names that nodes report, without partitioning and compaction."""
        found = {}
        for name in sorted(names):
            whole, _, number = name.rpartition("/")
            is_partition = whole not in ("", *names) and number.isdigit()
            if self._options.wants(name, whole if is_partition else None):
                log = (whole, int(number)) if is_partition else (name, 0)
                found[name] = SourceLog(*log, dense=False)
        return found

    def _logs_of(self, name: str) -> dict[str, SourceLog]:
        """Return the log of a stream, or those of its partitions."""
        if self._may_ask_nats:
            try:
                return self._logs_as_configured(name)
            except (NoResponders, Unauthorized) as error:  # who has a right to read needs no other one
                if self._logs and isinstance(error, NoResponders):
                    raise
        found = self._by_names(set(self._client.stream_names(name, subject=self._options.subject)))
        self._may_ask_nats = False
        return found

    def _logs_as_configured(self, name: str) -> dict[str, SourceLog]:
        try:
            config = self._client.streams.info(name).config
        except UnknownStream:
            return {}
        except StreamIsPartitioned:
            whole = self._client.streams.partitions(name)
            dense = whole.config.compact is Compact.NONE
            return {each.name: SourceLog(name, each.partition or 0, dense=dense) for each in whole.partitions}
        return {
            name: SourceLog(
                config.partition_of or name, config.partition or 0, config.compact is Compact.NONE
            )
        }


def _datetime(moment: int) -> datetime:
    """Return the moment, or the nearest one that a datetime can be; no record is before or after these."""
    return _EPOCH + timedelta(microseconds=min(max(moment, 0), _LATEST_US))
