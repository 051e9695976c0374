"""A forked process is what the same command is in a process of its own."""

import os
import signal
import subprocess
import sys
from subprocess import PIPE

import pytest

from tests.support.commands import REPOSITORY, CommandProcess
from tests.support.forked_process import ForkedProcess

_PROGRAM = "tests.unit.support.forked_program"


def _forked(*arguments: str, environment: dict[str, str] | None = None) -> ForkedProcess:
    return ForkedProcess(_PROGRAM, arguments, environment=environment, stdin=PIPE, stdout=PIPE, stderr=PIPE)


def test_it_has_the_files_the_directory_and_only_the_environment_that_it_is_given() -> None:
    with _forked("echo", environment={"ONLY": "this"}) as process:
        output, error = process.communicate(b"given", timeout=60)
    assert (output.decode(), error, process.returncode) == (f"{REPOSITORY} this 1 given\n", b"", 0)


@pytest.mark.parametrize("code", [0, 3])
def test_its_exit_code_is_the_modules(code: int) -> None:
    with _forked("exit", str(code)) as process:
        assert process.wait(60) == code


def test_what_it_raises_ends_it_with_a_traceback() -> None:
    with _forked("raise") as process:
        _, error = process.communicate(timeout=60)
    assert process.returncode == 1
    assert error.endswith(b"ValueError: a mistake\n")


def test_two_of_them_draw_different_chance() -> None:
    with _forked("chance") as one, _forked("chance") as other:
        assert one.communicate(timeout=60) != other.communicate(timeout=60)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_it_is_a_child_of_ours_that_stops_goes_on_and_ends_by_signals(number: signal.Signals) -> None:
    with _forked("wait") as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == process.pid
        assert process.poll() is None
        process.send_signal(signal.SIGSTOP)
        stopped = os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        assert stopped is not None
        assert stopped.si_status == signal.SIGSTOP
        process.send_signal(signal.SIGCONT)
        process.send_signal(number)
        assert process.wait(60) == -number


def test_a_command_says_the_same_whether_it_is_forked_or_started() -> None:
    told = []
    for is_forked in (True, False):
        with CommandProcess("stream", "ls", "--nonsense", is_forked=is_forked) as process:
            told.append(process.finished())
    assert told[0] == told[1]
    assert told[0][0] == 2


def test_it_dies_with_the_process_that_asked_for_it() -> None:
    code = (
        "import signal\n"
        "from tests.support.forked_process import ForkedProcess\n"
        f"process = ForkedProcess({_PROGRAM!r}, ['wait'])\n"
        "signal.pause()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=PIPE, cwd=REPOSITORY) as parent:
        assert parent.stdout is not None
        with open(f"/proc/{int(parent.stdout.readline())}/status", "rb") as status:
            assert status.read()
            parent.kill()
            assert parent.stdout.read() == b"", "its output ends, as it has ended"
