"""The first signal stops a pipeline cleanly, the second one ends its process at once."""

import signal
import subprocess
import sys
import threading

import pytest

from jetstream.cli.pipelines.run import signals_set

_SLOW = pytest.mark.slow("tests/unit/cli/pipelines/test_pipeline_signals.py")
_PROGRAM = """
import signal, threading
from jetstream.cli.pipelines.run import signals_set

with signals_set(threading.Event()) as stop:
    print("ready", flush=True)
    stop.wait(30)
    print("stopping", flush=True)
    threading.Event().wait(30)
"""


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (signal.SIGINT, signal.SIGTERM),
        pytest.param(signal.SIGTERM, signal.SIGINT, marks=_SLOW),
        pytest.param(signal.SIGINT, signal.SIGINT, marks=_SLOW),
        pytest.param(signal.SIGTERM, signal.SIGTERM, marks=_SLOW),
    ],
)
def test_a_second_signal_ends_the_process_at_once(first: signal.Signals, second: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", _PROGRAM], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for said, number in (("ready\n", first), ("stopping\n", second)):
            assert process.stdout.readline() == said
            process.send_signal(number)
        assert process.wait(timeout=30) == -second


def test_what_handled_the_signals_before_does_so_again() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with signals_set(threading.Event()) as stop:
        during = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        assert not stop.is_set()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert before != during
