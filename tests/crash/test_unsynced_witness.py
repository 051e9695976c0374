"""Whatever a node dies of, and whenever: it never claims to have what a power loss may have taken."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import pytest

from jetstream.node.disk.unsynced_marker import WITNESS_FILE, BootMarker, present_kernel
from tests.support.logs import file_content, flipped, overwrite
from tests.support.memory_disk import (
    Fault,
    FaultKind,
    MemoryDisk,
    PowerLostError,
    Survival,
    everything_survives,
    nothing_survives,
    random_survival,
)

SURVIVALS: tuple[Callable[[], Survival], ...] = (
    lambda: everything_survives,
    lambda: nothing_survives,
    lambda: random_survival(1),
    lambda: random_survival(2),
)
END = 1_000


@dataclass
class Machine:
    """One node on one machine, and what is true of it.

    Attributes:
        is_dirty: the kernel has records that are not on disk.
        has_lost: records are gone, and the cluster does not know.
    """

    disk: MemoryDisk
    boots: int = 1
    is_dirty: bool = False
    has_lost: bool = False

    def live(self, *, until_call: int = END, stops: bool = False) -> bool | None:
        """Start the node, have it write, perhaps stop it cleanly; the power goes at that call of the disk.

        Returns whether it claims to have everything; None if it did not come to that.
        """
        self.disk.faults = {until_call: Fault(FaultKind.POWER_LOSS_AFTER)}
        witness, claims = BootMarker(self.disk, f"boot-{self.boots}"), None
        try:
            claims = witness.begin()
            assert not (claims and self.has_lost), "it claims what is gone"
            witness.registered()
            self.has_lost, self.is_dirty = False, True
            if stops:
                self.is_dirty = False  # every log is synced first
                witness.stopped()
        except PowerLostError:
            pass
        return claims

    def lose_power(self, survival: Survival) -> None:
        self.has_lost |= self.is_dirty
        self.is_dirty = False
        self.boots += 1
        self.disk = self.disk.power_loss(survival)

    def kill(self) -> None:
        """The process dies, the kernel has all it wrote."""
        self.disk.process_loss()


def lived(*, stops: bool) -> Machine:
    machine = Machine(MemoryDisk())
    assert machine.live(stops=stops) is False, "of a new directory nobody knows anything"
    return machine


def test_a_killed_process_and_a_clean_stop_keep_everything() -> None:
    machine = lived(stops=False)
    machine.kill()
    assert machine.live() is True
    machine = lived(stops=True)
    machine.lose_power(nothing_survives)
    assert machine.live() is True, "everything was synced, and the power went afterwards"


def test_a_power_loss_keeps_nothing_until_the_node_has_registered_without_it() -> None:
    machine = lived(stops=False)
    machine.lose_power(everything_survives)
    for _ in range(3):
        witness = BootMarker(machine.disk, f"boot-{machine.boots}")
        assert witness.begin() is False, "nobody was told yet"
        machine.kill()
    assert machine.live() is False
    machine.kill()
    assert machine.live() is True


@pytest.mark.parametrize("survival", SURVIVALS)
@pytest.mark.parametrize("before", ["killed", "stopped", "power"])
def test_the_power_may_go_at_every_call(survival: Callable[[], Survival], before: str) -> None:
    for call in count(1):
        machine = lived(stops=before == "stopped")
        if before == "power":
            machine.lose_power(survival())
        else:
            machine.kill()
        last_call = machine.disk.calls + call
        machine.live(until_call=last_call, stops=True)
        is_over = machine.disk.calls < last_call
        machine.lose_power(survival())
        machine.live()
        machine.lose_power(survival())
        machine.live()
        if is_over:
            break
        assert call < END


def test_a_failed_log_is_not_believed_again_before_the_cluster_knows() -> None:
    machine = lived(stops=False)
    witness = BootMarker(machine.disk, "boot-1")
    assert witness.begin()
    witness.registered()
    witness.distrust()
    witness.distrust()
    witness.stopped()
    machine.kill()
    assert machine.live() is False


@pytest.mark.parametrize("has_lost", [True, False])
def test_a_stop_before_the_node_has_registered_changes_no_claim(has_lost: bool) -> None:
    machine = Machine(MemoryDisk())
    machine.live(stops=not has_lost)
    for boot in ("boot-2", "boot-3"):
        witness = BootMarker(machine.disk, boot)
        assert witness.begin() is not has_lost
        witness.stopped()


def test_a_witness_that_is_damaged_claims_nothing() -> None:
    machine = lived(stops=True)
    overwrite(machine.disk, WITNESS_FILE, flipped(file_content(machine.disk, WITNESS_FILE), 5, 1))
    assert machine.live() is False


def test_a_machine_whose_kernel_has_no_name_keeps_what_was_stopped_cleanly() -> None:
    disk = MemoryDisk()
    witness = BootMarker(disk, None)
    witness.begin()
    witness.registered()
    assert BootMarker(disk, None).begin() is False
    witness = BootMarker(disk, None)
    witness.registered()
    witness.stopped()
    assert BootMarker(disk, None).begin() is True


def test_this_machines_kernel_has_a_name() -> None:
    assert present_kernel() == present_kernel() != ""


def test_a_full_disk_leaves_no_claim_of_before() -> None:
    machine = lived(stops=True)
    machine.disk.faults = {call: Fault(FaultKind.DISK_FULL) for call in range(1, END)}
    witness = BootMarker(machine.disk, "boot-1")
    assert witness.begin() is True
    witness.registered()
    machine.disk.faults = {}
    assert BootMarker(machine.disk, "boot-1").begin() is False
