"""The metadata log of a cluster of one: a single voter over the storage that Raft uses.

Every start is a new term with a vote for oneself, as it would be with more voters, so that a directory
written here is a legal Raft log. An entry is committed when it is durable; everything that is stored is
therefore applied at start.

Calls block and come from one thread. The catalogue may be read from any thread (`Catalog`).

Invariants:
    M1: what was applied is what a restart reads: commands are applied as decoded from their bytes.
    M2: nothing is applied before it is durable.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from envelope.errors import CorruptDataError, DiskFull, JetstreamError, Overloaded, RequestError
from envelope.types import LogIndex, NodeId, Term
from metadata.catalog.catalog import Catalog
from metadata.catalog.commands import Command, decode_command, encode_command
from metadata.catalog.events import Event, Events, Refused
from metadata.catalog.snapshot import decode, encode
from metadata.limits import APPEND_BYTES_MAX, ENTRY_BYTES_MAX, SNAPSHOT_LOG_BYTES_MIN
from metadata.node.disk_port import MetadataDisk
from metadata.node.file_storage import FileStorage
from metadata.node.storage import Storage
from metadata.raft.state import Entry, HardState, Snapshot

_FRAMING_BYTES_PER_ENTRY: Final = 64


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one proposed command, which is durable in the log either way."""

    index: LogIndex
    events: Events

    @property
    def refusal(self) -> JetstreamError | None:
        """The typed error if the catalogue refused the command, else None."""
        first = self.events[0]
        return first.exception() if isinstance(first, Refused) else None

    def answer(self) -> Event:
        """Return the first event, the answer to the proposer.

        Raises:
            JetstreamError: the catalogue refused the command.
        """
        if self.refusal is not None:
            raise self.refusal
        return self.events[0]


class LocalMetadata:
    """Drives a catalogue from a storage as its only voter; see the module."""

    def __init__(
        self, storage: Storage, node_id: NodeId, snapshot_log_bytes_min: int = SNAPSHOT_LOG_BYTES_MIN
    ) -> None:
        """Load the snapshot and replay the log behind it.

        Args:
            storage: owned from now on; `close` closes it.
            node_id: the voter.
            snapshot_log_bytes_min: log bytes below which no snapshot is taken; a log longer than that
                and than the last snapshot is replaced by a new one.

        Raises:
            CorruptDataError: the log holds what no version of the catalogue wrote.
        """
        stored = storage.load()
        self._storage = storage
        self._snapshot_log_bytes_min = snapshot_log_bytes_min
        self._compact_at = max(snapshot_log_bytes_min, len(stored.snapshot.payload))
        self._term = Term(stored.hard_state.term + 1)
        self._unsaved_vote: HardState | None = HardState(self._term, node_id)
        self.compaction_refused: DiskFull | None = None
        """Why the log is longer than it should be; None when it is not."""
        self._catalog = _restored(stored.snapshot)
        for entry in stored.entries:
            self._catalog.apply(entry.index, decode_command(entry.payload, entry.index))

    @classmethod
    def open(
        cls, disk: MetadataDisk, directory: str, node_id: NodeId, *, create: bool = True
    ) -> "LocalMetadata":
        """Open the `FileStorage` in ``directory`` and load the catalogue; errors as there and above."""
        storage = FileStorage.open(disk, directory, create=create)
        try:
            return cls(storage, node_id)
        except JetstreamError:
            storage.close()
            raise

    @property
    def catalog(self) -> Catalog:
        """The catalogue; to be read, never applied to."""
        return self._catalog

    def propose(self, commands: Sequence[Command]) -> list[Result]:
        """Store commands in order with one sync, apply them, and return what became of each.

        Returns when all are durable, refused ones too.

        Raises:
            RequestError: a command is too large; nothing was stored.
            Overloaded: too many at once; nothing was stored.
            DiskFull: nothing was stored, and the same call may succeed later.
            StorageError: the outcome is unknown until a restart; every later call raises.
        """
        if not commands:
            return []
        first = self._catalog.applied + 1
        payloads = [_checked_payload(command) for command in commands]
        if sum(map(len, payloads)) + _FRAMING_BYTES_PER_ENTRY * (len(payloads) + 1) > APPEND_BYTES_MAX:
            raise Overloaded(f"{len(payloads)} commands exceed {APPEND_BYTES_MAX} bytes")
        entries = [
            Entry(LogIndex(index), self._term, payload) for index, payload in enumerate(payloads, first)
        ]
        decoded = [decode_command(entry.payload, entry.index) for entry in entries]
        self._storage.append(entries, self._unsaved_vote)
        self._unsaved_vote = None
        results = [
            Result(entry.index, self._catalog.apply(entry.index, command))
            for entry, command in zip(entries, decoded, strict=True)
        ]
        self._compact_if_due()
        return results

    def close(self) -> None:
        """Close the storage; everything was durable before."""
        self._storage.close()

    def _compact_if_due(self) -> None:
        """Replace a long log by a snapshot; results are durable already, so a full disk only waits."""
        if self._storage.log_bytes <= self._compact_at:
            return
        payload = encode(self._catalog)
        try:
            self._storage.compact(Snapshot(self._catalog.applied, self._term, payload))
        except DiskFull as error:
            self.compaction_refused = error
            self._compact_at = self._storage.log_bytes + self._snapshot_log_bytes_min
        else:
            self.compaction_refused = None
            self._compact_at = max(self._snapshot_log_bytes_min, len(payload))


def _restored(snapshot: Snapshot) -> Catalog:
    if snapshot.index == 0:
        return Catalog()
    catalog = decode(snapshot.payload)
    if catalog.applied != snapshot.index:
        raise CorruptDataError(f"snapshot {snapshot.index} holds the catalogue of {catalog.applied}")
    return catalog


def _checked_payload(command: Command) -> bytes:
    payload = encode_command(command)
    if len(payload) > ENTRY_BYTES_MAX:
        raise RequestError(f"a command of {len(payload)} bytes exceeds {ENTRY_BYTES_MAX}")
    return payload
