"""The unit of systemd is one that systemd takes, and a node does without what it forbids.

No systemd runs it here: ``systemd-analyze`` reads it, and a real node is watched. A test that lacks a program
which it needs is skipped, and says so.
"""

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support.commands import REPOSITORY, WAIT_SECONDS, succeeded
from tests.support.nats_server import NatsServer

UNIT: Final = REPOSITORY / "deploy" / "systemd" / "jetstream.service"
EXPOSURE_MAX: Final = "20"
"""Tenths of what ``systemd-analyze security`` counts from 0 to 10; 9.2 without any of the directives."""

WITHOUT_NEW_CODE: Final = """
import ctypes, runpy
PR_SET_MDWE = 65  # prctl(2), since Linux 6.3: as MemoryDenyWriteExecute=yes
if ctypes.CDLL(None).prctl(PR_SET_MDWE, 1, 0, 0, 0):
    raise SystemExit("no PR_SET_MDWE")
runpy.run_module("jetstream", run_name="__main__")
"""


def needed(*programs: str) -> None:
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        pytest.skip(f"THE UNIT WAS NOT TRIED: there is no {missing[0]} on the PATH")


def values(directive: str) -> list[str]:
    return re.findall(rf"^{directive}=(.*)$", UNIT.read_text(), re.MULTILINE)


def ran(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=WAIT_SECONDS)


def test_the_unit_keeps_its_data_where_the_pages_say() -> None:
    page = (REPOSITORY / "docs" / "operations.md").read_text()
    assert f'data = "/var/lib/{values("StateDirectory")[0]}"' in page
    [program] = values("ExecStart")
    assert f"jetstream {program.partition(' ')[2]}\n" in page
    assert values("TimeoutStopSec") == ["60"], "as long as the compose file gives a stop"


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    needed("systemd-analyze")
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/jetstream/bin/jetstream", sys.executable))
    done = ran("systemd-analyze", "verify", unit)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_exposes_little() -> None:
    needed("systemd-analyze")
    done = ran("systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE_MAX}", UNIT)
    assert done.returncode == 0, done.stdout


def allowed_calls() -> set[str]:
    """Return the system calls that the unit's filters leave."""
    allowed = set[str]()
    for group in values("SystemCallFilter"):
        members = set(calls_of(group.removeprefix("~")))
        allowed = allowed - members if group.startswith("~") else allowed | members
    return allowed


def calls_of(group: str) -> list[str]:
    lines = ran("systemd-analyze", "syscall-filter", group).stdout.splitlines()[1:]
    names = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
    return [call for name in names for call in (calls_of(name) if name.startswith("@") else [name])]


@pytest.mark.slow("tests/deploy/test_systemd.py")
def test_a_node_needs_no_system_call_socket_or_memory_that_the_unit_forbids(
    tmp_path: Path, nats_server: NatsServer
) -> None:
    needed("systemd-analyze", "strace")
    trace = tmp_path / "trace"
    watched = ["strace", "-D", "-f", "-qq", "-o", str(trace), sys.executable, "-c", WITHOUT_NEW_CODE]
    arguments = ["node", "--data", str(tmp_path / "data"), "--port", "0", "--nats", nats_server.url]
    with subprocess.Popen(
        [*watched, *arguments], cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as node:
        try:
            assert node.stdout is not None
            if "ready\n" not in iter(node.stdout.readline, ""):
                said = node.communicate()[1]
                if "no PR_SET_MDWE" in said:
                    pytest.skip("THE UNIT WAS NOT TRIED: this kernel is older than 6.3")
                raise AssertionError(said)
            succeeded("stream", "create", "orders", "--subject", "orders.>", nats=nats_server.url)
            succeeded("pub", "orders.eu", "kept", nats=nats_server.url)
            assert "kept" in succeeded("read", "orders", nats=nats_server.url)
            node.send_signal(signal.SIGTERM)
            assert node.wait(WAIT_SECONDS) == 0
        finally:
            node.kill()
    lines = trace.read_text()
    made = set(re.findall(r"^\d+ +(\w+)\(", lines, re.MULTILINE))
    assert {"setrlimit", "prlimit64"} & made, "it raises its limit of descriptors"
    assert made - allowed_calls() == set()
    families = set(re.findall(r"\bsocket\((AF_\w+)", lines))
    assert families <= set(values("RestrictAddressFamilies")[0].split())
