"""Every checker, told of what concerns several of them in one call."""

from collections.abc import Collection, Sequence

from envelope.errors import JetstreamError
from envelope.types import LeaderEpoch, NodeId, Offset, StreamName, SyncMode, TimestampUs
from jetstream.log.rewriting.repair import Hole
from metadata.catalog.catalog import Catalog
from metadata.catalog.commands import Command, RegisterNode
from tests.simulation.replica.checkers.copies import check_count, check_members
from tests.simulation.replica.checkers.damages import check_filled, check_repaired
from tests.simulation.replica.checkers.elections import Elections
from tests.simulation.replica.checkers.history import History
from tests.simulation.replica.checkers.ids import Ids
from tests.simulation.replica.checkers.leases import Leases
from tests.simulation.replica.checkers.log_matching import LogMatching
from tests.simulation.replica.checkers.power_losses import PowerLosses
from tests.simulation.replica.checkers.publishing import Publishing
from tests.simulation.replica.checkers.read_replicas import ReadReplicas, without
from tests.simulation.replica.checkers.reigns import Process, Reigns
from tests.simulation.replica.checkers.truths import Truths
from tests.simulation.replica.filling import misfit
from tests.simulation.replica.log_image import Batch, LogImage
from tests.simulation.replica.reading import damaged_batches
from tests.simulation.replica.swarm import LEASE, Swarm
from tests.simulation.violation import Violation


class _Logs(dict[str, LogImage]):
    """The logs of one stream by data directory; a disk that never had the stream has an empty one."""

    def __init__(self, stream: StreamName, *, syncs: bool) -> None:
        super().__init__()
        self._stream, self._syncs = stream, syncs

    def __missing__(self, directory: str) -> LogImage:
        """Return what is there where nothing was ever written, and remember nothing."""
        return self.empty()

    def empty(self) -> LogImage:
        """Return a log that has nothing."""
        return LogImage(self._stream, syncs=self._syncs)


class Checks:
    """Knows all logs that ever were, by stream and data directory; and the catalogue as it is."""

    def __init__(self, swarm: Swarm) -> None:
        names = [shape.name for shape in swarm.streams]
        syncs = {shape.name: shape.sync is SyncMode.ALWAYS for shape in swarm.streams}
        self.images = {name: _Logs(name, syncs=syncs[name]) for name in names}
        self.truths = {name: Truths() for name in names}
        self.publishing = {name: Publishing(self.truths[name]) for name in names}
        self.histories = {name: History() for name in names}
        self.ids = {
            shape.name: Ids(self.truths[shape.name], shape.dedupe_window // 1000)
            for shape in swarm.streams
            if shape.dedupe_window
        }
        self.log_matching = LogMatching()
        self.reigns = Reigns()
        self.power_losses = PowerLosses()
        tolerance = LEASE * 3 * swarm.drift_ppm // 1_000_000
        self.leases, self.elections = Leases(tolerance), Elections(LEASE, tolerance)
        self.read_replicas = ReadReplicas()
        self._gone: set[tuple[StreamName, str]] = set()
        """Logs that are gone from their directories, and whose nodes have not said so yet."""
        self.catalog = Catalog()

    def new_image(self, directory: str, stream: StreamName) -> LogImage:
        """Return the empty log of a replica on a new disk."""
        logs = self.images[stream]
        image = logs[directory] = logs.empty()
        return image

    def removed(self, directory: str, stream: StreamName) -> None:
        """A node has removed its log; what was held was held, and there is nothing now."""
        logs = self.images[stream]
        logs[f"removed-{len(logs)}-{directory}"] = logs.pop(directory)
        if stream in self.ids:
            self.ids[stream].lost(directory, Offset(0))
        self.new_image(directory, stream)

    def log_gone(self, directory: str, stream: StreamName) -> None:
        """A log is gone from a disk; what it held was held."""
        self.removed(directory, stream)
        self._gone.add((stream, directory))

    def told(self, directory: str) -> None:
        """The node on that disk has registered, and said what is gone: nobody may count on that now."""
        self._gone = {gone for gone in self._gone if gone[1] != directory}
        for name in self.images:
            self._check_members(name)

    def written(self, image: LogImage, batch: Batch) -> None:
        """A batch is about to be written."""
        self.log_matching.written(image, batch)

    def lost(self, image: LogImage) -> None:
        """A log may have less than before."""
        if image.stream in self.ids:
            directories = [key for key, log in self.images[image.stream].items() if log is image]
            for directory in directories:
                self.ids[image.stream].lost(directory, image.log_end)
        self._check_members(image.stream)

    def applied(self, command: Command) -> None:
        """The catalogue has applied a command, and it alone."""
        self.elections.applied(self.catalog, command, self.truths, self.images)
        if isinstance(command, RegisterNode):
            self.power_losses.registered(command, self.catalog.streams(), self.truths, self.images)

    def catalog_changed(self, catalog: Catalog) -> None:
        """The catalogue has applied a command."""
        self.catalog = catalog
        for name in self.images:
            self._check_members(name)
            self.read_replicas.changed(name, catalog)

    def reign_begun(self, leader: Process, epoch: LeaderEpoch, image: LogImage) -> None:
        """A process begins to lead."""
        stream = self.catalog.stream(image.stream)
        assert stream is not None, f"{image.stream} exists"
        truths = self.truths[image.stream]
        truths.begun(epoch, image)
        self.reigns.begun(leader, epoch, image, truths.of(epoch), stream.leader_epoch)

    def silent(self, reporter: NodeId, name: StreamName, epoch: LeaderEpoch) -> None:
        """A follower reports its leader as silent; what a read replica says is no reason for anything."""
        stream = self.catalog.stream(name)
        if stream is None or reporter not in stream.read_replicas:
            self.leases.reported(name, epoch)

    def announced(
        self,
        name: NodeId,
        image: LogImage,
        high_watermark: Offset,
        epoch: LeaderEpoch,
        apart: Collection[NodeId] = (),
    ) -> None:
        """A leader says that everything below is committed; ``apart``: what these have does not count."""
        truths = self.truths[image.stream]
        committed = truths.of(epoch)
        grows = high_watermark > committed.end
        committed.by_leader(name, image, high_watermark)
        stream = self.catalog.stream(image.stream)
        if stream is None or not grows or truths.is_parting or committed is not truths.newest:
            return
        if not stream.begun:
            raise Violation(f"{name} commits in {stream.name}, which has not begun")
        counted = without(apart, self.images[image.stream].items())
        before = without(apart, self.power_losses.held(image.stream))
        check_count(stream, high_watermark, committed, dict(counted), before)
        self._check_members(image.stream)

    def committed(self, name: StreamName, high_watermark: Offset, now: TimestampUs) -> None:
        """A leader says so at that time; who is in sync then has to know."""
        stream = self.catalog.stream(name)
        if name in self.ids and stream is not None:
            self.ids[name].announced(high_watermark, now, {member.directory for member in stream.isr})

    def filled(self, image: LogImage, hole: Hole, batches: Sequence[Batch]) -> JetstreamError | None:
        """Put into a hole what fits there; return why not."""
        error = misfit(image, hole, batches)
        if error is None:
            check_filled(str(image.stream), image, batches)
            image.damage.put_back(hole.base, hole.next)
            check_repaired(str(image.stream), image, hole.base, hole.next)
        return error

    def opened(self, image: LogImage, *, reads_all: bool) -> None:
        """A process opens a log: it does not know the ids of what it finds damaged then."""
        if image.damage.is_none:
            return
        image.damage.opened(image.batches_from(image.origin), reads_all=reads_all)
        missing = image.damage.missing
        gone = {value for batch in damaged_batches(image) if batch.base in missing for value in batch.values}
        self.truths[image.stream].newest.forgotten.update(gone)

    def trimmed(self, image: LogImage, gone: list[str]) -> None:
        """Retention has removed these values from one log."""
        self.truths[image.stream].newest.forgotten.update(gone)

    def _check_members(self, name: StreamName) -> None:
        stream = self.catalog.stream(name)
        truths = self.truths[name]
        if stream is not None and not truths.is_parting:
            untold = self.power_losses.untold(stream)
            spared = {
                member.directory
                for member in stream.isr
                if member.directory in untold
                or (name, member.directory) in self._gone
                or member.node_id in stream.blank
            }
            if len(stream.isr) > 1 and not set(stream.isr_nodes).isdisjoint(stream.blank):
                raise Violation(f"{stream.isr_nodes} are in sync in {name}, and {stream.blank} are blank")
            check_members(stream, truths.newest, self.images[name], spared)
