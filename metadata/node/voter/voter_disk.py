"""The thread that makes a voter's writes durable, in their order, several with one sync where they allow it.

While one sync runs further writes gather; entries that a later write replaces are then never written at all.
A full disk makes the thread wait and try again, as a slow disk would: no write may be left
out or overtaken. Any other error is the last report of the thread.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Final

from envelope.errors import DiskFull
from metadata.limits import APPEND_BYTES_MAX
from metadata.node.storage.port import Storage
from metadata.raft.events import Persist
from metadata.raft.state import Entry, HardState

_log = logging.getLogger(__name__)

FULL_DISK_RETRY_SECONDS: Final = 1.0

_FRAMING_BYTES_PER_ENTRY: Final = 64


class VoterDisk:
    """Owns the thread and the storage; its methods are called on the event loop's thread."""

    def __init__(
        self,
        storage: Storage,
        persisted: Callable[[Sequence[Persist], int], None],
        stalled: Callable[[DiskFull], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        """Start the thread.

        Args:
            storage: used by the thread alone from now on; `stop` closes it.
            persisted: called on the loop with writes that are durable now, and the storage's ``log_bytes``.
            stalled: called on the loop whenever the disk is full; the write is tried again.
            failed: called on the loop with the error after which nothing more is written, and with that of
                closing the storage.
        """
        self._storage = storage
        self._persisted = persisted
        self._stalled = stalled
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[Persist | None] = SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="jetstream-metadata", daemon=True)
        self._thread.start()

    def write(self, persist: Persist) -> None:
        """Make this durable behind everything that was handed over before it."""
        self._queue.put(persist)

    async def stop(self) -> None:
        """Finish the queued writes, unless the disk is full; then end the thread and close the storage."""
        self._stopping.set()
        self._queue.put(None)
        await self._loop.run_in_executor(None, self._thread.join)

    # --- on the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        for work in (self._serve, self._storage.close):
            try:
                work()
            except _StoppedWhileFull:
                _log.warning("stopped while the disk was full; what was not written was not promised")
            except BaseException as error:  # noqa: BLE001 - handed to whoever stops the voter, whatever it is
                self._loop.call_soon_threadsafe(self._failed, error)

    def _serve(self) -> None:
        while (first := self._queue.get()) is not None:
            taken = [first]
            stop = False
            while not self._queue.empty() and not stop:
                persist = self._queue.get()
                stop = persist is None
                if persist is not None:
                    taken.append(persist)
            for together in _batches(taken):
                self._write(together)
                self._loop.call_soon_threadsafe(self._persisted, together, self._storage.log_bytes)
            if stop:
                return

    def _write(self, persists: Sequence[Persist]) -> None:
        """Make writes durable of which only the first may have a snapshot."""
        hard_state = next((write.hard_state for write in reversed(persists) if write.hard_state), None)
        snapshot = persists[0].snapshot
        if snapshot is not None:
            self._append((), hard_state)  # a term of the snapshot's must be there first
            hard_state = None
            self._until_there_is_space(partial(self._storage.compact, snapshot))
        self._append(_merged(persists), hard_state)

    def _append(self, entries: Sequence[Entry], hard_state: HardState | None) -> None:
        for part in _parts(entries):
            self._until_there_is_space(partial(self._storage.append, part, hard_state))
            hard_state = None

    def _until_there_is_space(self, work: Callable[[], None]) -> None:
        while True:
            try:
                work()
            except DiskFull as error:
                _log.warning("the metadata log waits for space on its disk: %s", error.description)
                self._loop.call_soon_threadsafe(self._stalled, error)
                if self._stopping.wait(FULL_DISK_RETRY_SECONDS):
                    raise _StoppedWhileFull from error
            else:
                return


class _StoppedWhileFull(Exception):
    """The thread was stopped while it waited for space."""


def _batches(persists: Sequence[Persist]) -> list[list[Persist]]:
    """Return the writes in runs that go together: a snapshot begins a new one."""
    runs: list[list[Persist]] = []
    for persist in persists:
        if persist.snapshot is not None or not runs:
            runs.append([])
        runs[-1].append(persist)
    return runs


def _merged(persists: Sequence[Persist]) -> list[Entry]:
    """Return the entries that are left when each write has replaced all from its first one's index on."""
    entries: list[Entry] = []
    for persist in persists:
        if persist.entries and entries:
            kept = persist.entries[0].index - entries[0].index
            del entries[max(kept, 0) :]
        entries += persist.entries
    return entries


def _parts(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Return the entries in parts that each fit one append; one, empty, if there are none."""
    parts: list[list[Entry]] = [[]]
    size = 0
    for entry in entries:
        size += len(entry.payload) + _FRAMING_BYTES_PER_ENTRY
        if size > APPEND_BYTES_MAX // 2 and parts[-1]:
            parts.append([])
            size = len(entry.payload) + _FRAMING_BYTES_PER_ENTRY
        parts[-1].append(entry)
    return parts
