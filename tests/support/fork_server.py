"""A process that has imported what nodes and commands import, and forks itself for each that a test starts.

    python -m tests.support.fork_server <file descriptor of a socket>

To import a node takes longer than most of what a test does with it. Nothing runs here but the loop below: no
thread of Python's and no event loop, so that a fork is as good as a new process. It becomes a child of the
process that asked for it (`tests.support.forked_process`), and the module that it runs ends the interpreter
as it always does. What an interpreter takes from the environment at its start (``PYTHON…``) has no effect.
"""

import ctypes
import gc
import json
import os
import pkgutil
import runpy
import signal
import socket
import sys
import warnings
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, Final

REQUEST_BYTES_MAX: Final = 1 << 20
_PR_SET_PDEATHSIG: Final = 1
_PACKAGES: Final = ("envelope", "metadata", "consumer_groups", "jetstream")
_PROGRAM: Final = "jetstream.__main__"
_NOT_IMPORTED: Final = (_PROGRAM, "jetstream.spark", "jetstream.cli.pipelines.command")
"""What wants Spark: a pipeline's command takes a process of its own."""


def _modules(packages: Sequence[str]) -> Iterator[str]:
    for package in packages:
        yield package
        for module in pkgutil.iter_modules(import_module(package).__path__, f"{package}."):
            if module.name.startswith(_NOT_IMPORTED):
                continue
            yield from _modules((module.name,)) if module.ispkg else (module.name,)


def _fork() -> int:
    """Fork; the kernel's threads of Arrow's allocator, which look after themselves, are no reason to warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _serve(requests: socket.socket) -> dict[str, Any]:
    """Answer each request with the id of a new process; return the request in that process."""
    while True:
        message, files, _, _ = socket.recv_fds(requests, REQUEST_BYTES_MAX, 3)
        if not message:
            raise SystemExit  # nobody is left to ask
        ours, theirs = os.pipe()
        between = _fork()
        if between == 0:
            between = os.getpid()
            child = _fork()
            if child:
                os.write(theirs, str(child).encode())
                os._exit(0)
            while os.getppid() == between:
                os.sched_yield()  # until it is a child of the process that asked
            requests.close()
            for number, file in enumerate(files):
                os.dup2(file, number)
            for file in (ours, theirs, *files):
                os.close(file)
            request: dict[str, Any] = json.loads(message)
            return request
        os.waitpid(between, 0)
        requests.send(os.read(ours, REQUEST_BYTES_MAX))
        for file in (ours, theirs, *files):
            os.close(file)


def _run(request: dict[str, Any]) -> None:
    """Run the module as if it had been started by itself."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # a killed test run leaves nothing behind
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = [request["module"], *request["arguments"]]
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


def main() -> None:
    """Import, then fork until the other end of the socket is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    program = import_module(_PROGRAM)
    sys.meta_path.insert(0, program.WithoutPandas())
    for module in _modules(_PACKAGES):
        import_module(module)
    del sys.meta_path[0], sys.modules[_PROGRAM]  # it is still to be run
    gc.collect()
    gc.freeze()
    _run(_serve(socket.socket(fileno=int(sys.argv[1]))))


if __name__ == "__main__":
    main()
