"""Whether a node still has all that it had written, also what it never synced.

With ``sync: interval | os`` a replica counts what it has written. If its process dies, the kernel still has
that; if its machine does, a tail may be gone, and the replica must not be taken for one in sync. This file in
the data directory tells the two apart at the next start: the machine has not been started since (the boot id
of its kernel), or the node had stopped cleanly, with everything synced. Where neither can be shown, something
may be gone.

    name      content
    unsynced  state file, ``{"boot_id": TEXT or null, "clean": BOOL}``; missing: something may be gone

Sources: KIP-966 (an unclean shutdown leaves the ISR), random(4) for ``boot_id``.
"""

import logging
from contextlib import suppress
from typing import Final

from envelope.errors import CorruptDataError, JetstreamError
from jetstream.log.disk.port import Disk
from jetstream.log.disk.state_file import Json, decode_state, read_whole, write_state

_log = logging.getLogger(__name__)

WITNESS_FILE: Final = "unsynced"
_KERNEL_FILE: Final = "/proc/sys/kernel/random/boot_id"


def present_kernel() -> str | None:
    """Return what names this run of the machine's kernel; None where nothing does."""
    with suppress(OSError), open(_KERNEL_FILE, encoding="ascii") as file:
        return file.read().strip() or None
    return None


class BootMarker:
    """The file; its methods block, in this order: `begin`, `registered`, `stopped`.

    Invariant:
        G1: at any power loss the file claims nothing for what was written since the node has registered: a
            clean stop is on record only while nothing is written, a boot only as that of the present kernel.
            Held by test_unsynced_witness.py.
    """

    def __init__(self, disk: Disk, kernel: str | None) -> None:
        """Work on the data directory at the root of ``disk``, under the kernel that ``kernel`` names."""
        self._disk = disk
        self._kernel = kernel
        self._is_trusted = True
        self._is_registered = False

    def begin(self) -> bool:
        """Return whether everything that was written is there, before anything else is.

        A loss is on record until the node has registered without it, however often it starts until then.

        Raises:
            StorageError: the disk refused.
        """
        found = self._read()
        is_same_boot = self._kernel is not None and found.get("boot_id") == self._kernel
        is_kept = found.get("clean") is True or is_same_boot
        if not is_kept:
            self._forget()
        return is_kept

    def registered(self) -> None:
        """Note that the cluster knows what this start has, before anything is written.

        From now on a crash of the process loses nothing, and one of the machine may.

        Raises:
            StorageError: the disk refused.
        """
        self._is_registered = True
        self._write(clean=False)

    def stopped(self) -> None:
        """Note that everything is synced and nothing is written any more.

        Nothing is noted of a node that never registered: what was true of its data before still is.

        Raises:
            StorageError: the disk refused.
        """
        if self._is_registered:
            self._write(clean=True)

    def distrust(self) -> None:
        """Note that a write or a sync has failed: what the kernel has of it may be gone without a power loss.

        Raises:
            StorageError: the disk refused.
        """
        self._is_trusted = False
        self._forget()

    def _read(self) -> dict[str, Json]:
        if not self._disk.exists(WITNESS_FILE):
            return {}
        try:
            return decode_state(read_whole(self._disk, WITNESS_FILE))
        except CorruptDataError as error:
            _log.warning("file %s is damaged, and claims nothing: %s", WITNESS_FILE, error)
            return {}

    def _write(self, *, clean: bool) -> None:
        if not self._is_trusted:
            return
        try:
            write_state(self._disk, WITNESS_FILE, {"boot_id": self._kernel, "clean": clean})
        except JetstreamError as error:
            # Without the file a node only has to catch up; with one of before it might lead without a tail.
            _log.warning("file %s not written: %s", WITNESS_FILE, error)
            self._forget()

    def _forget(self) -> None:
        if self._disk.exists(WITNESS_FILE):
            self._disk.unlink(WITNESS_FILE)
            self._disk.sync_dir("")
