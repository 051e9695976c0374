"""Which machine this is: the same to every process of it, and nothing of the kernel's own name is told."""

import subprocess
import sys
from pathlib import Path

from jetstream.log.disk.machine_id import id_in, machine_id

BOOT = Path("/proc/sys/kernel/random/boot_id")


def test_another_process_of_this_machine_says_the_same() -> None:
    program = "from jetstream.log.disk.machine_id import machine_id; print(machine_id())"
    said = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert said.strip() == machine_id()


def test_it_is_known_here_and_does_not_tell_what_the_kernel_calls_itself() -> None:
    found = machine_id()
    assert found is not None
    assert len(found) == 32
    name = BOOT.read_text().strip()
    assert found not in name.replace("-", "")
    assert found == id_in(BOOT)


def test_another_kernel_is_another_machine(tmp_path: Path) -> None:
    file = tmp_path / "boot_id"
    seen = {machine_id()}
    for name in ("one", "two"):
        file.write_text(f"{name}\n")
        seen.add(id_in(file))
        file.write_text(name)
        assert id_in(file) in seen, "white space does not count"
    assert len(seen) == 3
    assert None not in seen


def test_without_a_name_nobody_knows(tmp_path: Path) -> None:
    empty = tmp_path / "boot_id"
    empty.write_text("\n")
    assert id_in(empty) is None
    assert id_in(tmp_path / "nowhere") is None
    assert id_in(tmp_path) is None
