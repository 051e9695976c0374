"""What every test can ask for: real NATS servers, and hypothesis with fixed manners; who runs which tests."""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.support.nats_server import NatsServer

gc.disable()  # while thousands of tests are collected, of which none is garbage

# Deadlines and the too-slow check measure a shared machine, not the code under test.
_MANNERS = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("brief", _MANNERS, max_examples=10)
settings.register_profile("ci", _MANNERS, max_examples=100)
settings.register_profile("deep", _MANNERS, max_examples=5_000)
settings.load_profile("brief")

_SLOW_FOLDERS = {
    "tests/benchmarks/": pytest.mark.slow("tests/integration/test_bench_command.py"),
    "tests/console/": pytest.mark.slow("tests/integration/test_http_console.py"),
    "tests/containers/": pytest.mark.slow("tests/integration/test_cli.py"),
}
"""With the tests that hold their promises in the test command."""

StartNatsServer = Callable[..., NatsServer]

if TYPE_CHECKING:
    from tests.support.scheduling import SharedProcesses


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> "SharedProcesses | None":
    """With ``--dist loadfile``, let the tests of Spark and those of the tree share a process each."""
    if config.getoption("dist") != "loadfile":
        return None
    from tests.support.scheduling import SharedProcesses  # noqa: PLC0415 - only with xdist is it needed

    return SharedProcesses(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Take for slow what starts a dozen servers; begin with Spark, which keeps one process busy for longest.

    Folders whose tests all are slow hold no promise that others do not.
    """
    for item in items:
        for folder, mark in _SLOW_FOLDERS.items():
            if item.nodeid.startswith(folder):
                item.add_marker(mark)
    items.sort(key=lambda item: not item.nodeid.startswith("tests/spark/"))


def pytest_collection_finish() -> None:
    """Let the cycle collector look at what tests make, and not at all modules and tests with each pass."""
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.fixture
def start_nats_server(tmp_path: Path) -> Iterator[StartNatsServer]:
    """Start any number of NATS servers, as `NatsServer` says; all are stopped with the test."""
    with ExitStack() as stack:
        started = 0

        def start(config: str = "", options: Sequence[str] = ()) -> NatsServer:
            nonlocal started
            started += 1
            return stack.enter_context(NatsServer(tmp_path / f"nats-{started}", config, options))

        yield start


@pytest.fixture
def nats_server(start_nats_server: StartNatsServer) -> NatsServer:
    """Return a fresh NATS server with its own defaults: no JetStream, no credentials, 1 MiB payloads."""
    return start_nats_server()
