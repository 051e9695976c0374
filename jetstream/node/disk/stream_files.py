"""Where streams lie on a node's disk; every method that touches it runs on the disk thread."""

from dataclasses import dataclass
from typing import Final

from envelope.errors import OutOfResources, StorageError
from envelope.types import Incarnation, StreamName
from jetstream.log.disk.port import Disk
from jetstream.log.log import Log
from jetstream.log.recovery import Verify, holds_log
from jetstream.node.disk.open_log import OpenedLog, open_log
from jetstream.node.runtime.clock import Clock
from metadata.catalog.directories import directory_of, incarnation_of
from metadata.catalog.tables import Stream
from metadata.node.admission.descriptors import DescriptorShare, has_room

STREAMS_DIRECTORY: Final = "streams"


def stream_path(name: StreamName, incarnation: Incarnation) -> str:
    """Return where one life of a stream lies on the node's disk."""
    return f"{STREAMS_DIRECTORY}/{directory_of(name, incarnation)}"


@dataclass(frozen=True, slots=True)
class StreamFiles:
    """The streams' directories on one disk."""

    disk: Disk
    clock: Clock
    verify: Verify
    """How much of each log is verified when it is opened."""

    def held(self) -> frozenset[Incarnation]:
        """Return the lives of streams that have a log here, or may have one.

        Raises:
            StorageError: the disk does not show what there is.
        """
        if not self.disk.exists(STREAMS_DIRECTORY):
            return frozenset()
        names = self.disk.listdir(STREAMS_DIRECTORY)
        found = {name: incarnation for name in names if (incarnation := incarnation_of(name)) is not None}
        return frozenset(
            life for name, life in found.items() if self._may_hold(f"{STREAMS_DIRECTORY}/{name}")
        )

    def _may_hold(self, path: str) -> bool:
        try:
            return holds_log(self.disk, path)
        except (StorageError, OutOfResources):
            return True  # opening it raises the error

    def open(self, row: Stream) -> OpenedLog:
        """Recover a stream's log, or begin it; errors as `open_log`.

        A log has a file open as long as it lives, and may not take the last descriptors.
        """
        if not has_room(DescriptorShare.NODE):
            raise OutOfResources("no descriptor is left for another log: raise LimitNOFILE")
        path = stream_path(row.name, row.incarnation)
        if not holds_log(self.disk, path):
            Log.delete(self.disk, path)  # its state files are of records that are not there
        return open_log(self.disk, path, row.config, self.clock.wall(), self.verify)

    def remove(self, name: StreamName, incarnation: Incarnation) -> None:
        """Remove one life of a stream, durably; its log is closed.

        Raises:
            StorageError: the disk refused; it is there whole, or not at all.
        """
        Log.delete(self.disk, stream_path(name, incarnation))
