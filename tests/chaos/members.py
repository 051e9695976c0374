"""Members of consumer groups as processes that can be killed, frozen and started again."""

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.chaos.member_task import Task
from tests.chaos.recorder import Recorder
from tests.support.commands import REPOSITORY
from tests.support.group_history import decode_group_event
from tests.support.nats_server import stop_with_parent

STOP_SECONDS: Final = 20.0
_LINE_BYTES_MAX: Final = 1 << 20


class MemberProcess:
    """One process after the other with one task, each under a name of its own."""

    def __init__(self, task: Task, directory: Path, recorder: Recorder, tasks: asyncio.TaskGroup) -> None:
        """Nothing runs before `start`; what it says on standard error goes to a file in ``directory``."""
        self.task = task
        self.name = task.name
        self.log = directory / f"{task.name}.log"
        self.lives = 0
        self.is_paused = False
        self._recorder = recorder
        self._tasks = tasks
        self._process: asyncio.subprocess.Process | None = None
        self._heard: list[asyncio.Task[None]] = []

    @property
    def is_running(self) -> bool:
        """Whether the process is there; it may be paused."""
        return self._process is not None and self._process.returncode is None

    @property
    def life(self) -> str:
        """What the present process is called in the history."""
        return f"{self.name}#{self.lives}"

    async def start(self) -> None:
        """Start it; does not wait until it is a member."""
        assert not self.is_running, f"{self.name} runs"
        self.lives += 1
        task = replace(self.task, name=self.life)
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tests.chaos.group_member",
                task.encode(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=REPOSITORY,
                limit=_LINE_BYTES_MAX,
                preexec_fn=stop_with_parent,
            )
        assert self._process.stdout is not None
        self._heard.append(self._tasks.create_task(self._hear(self._process.stdout)))

    def open_gate(self, times: int = 1) -> None:
        """Let it commit so often, if its task is gated."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n" * times)

    def stand_still(self) -> None:
        """SIGSTOP; returns when all its threads do."""
        process = self._running()
        self.is_paused = True
        process.send_signal(signal.SIGSTOP)
        while _state(process.pid) not in "TZX":
            os.sched_yield()

    def go_on(self) -> None:
        """SIGCONT."""
        self.is_paused = False
        self._running().send_signal(signal.SIGCONT)

    async def kill(self) -> None:
        """SIGKILL."""
        self.is_paused = False
        process = self._running()
        process.kill()
        await process.wait()

    def let_go(self) -> None:
        """End its input, so that it leaves the group, once it can; does not wait for that.

        A signal would strike down a process that is still starting.
        """
        if self.is_paused:
            self.go_on()
        process = self._running()
        assert process.stdin is not None
        process.stdin.close()

    async def stop(self) -> int:
        """Let it go; returns the exit code, that of SIGKILL if it does not end."""
        self.let_go()
        process = self._running()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                return await process.wait()
        except TimeoutError:
            process.kill()
            return await process.wait()

    async def has_said_all(self) -> None:
        """Return once all is put down that its processes have said, which have ended."""
        if self._heard:
            await asyncio.wait(self._heard)

    async def _hear(self, output: asyncio.StreamReader) -> None:
        while (line := await output.readline()).endswith(b"\n"):
            self._recorder.record_of_group(decode_group_event(line))

    def _running(self) -> asyncio.subprocess.Process:
        assert self._process is not None, f"{self.name} was never started"
        return self._process


def _state(pid: int) -> str:
    """Return what the kernel says of a process: T is stopped, Z has ended."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
