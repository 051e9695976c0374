"""A loop's default executor whose one thread does what it is given when a test lets it."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


class HeldThreads(ThreadPoolExecutor):
    """One thread; nobody waits for ever.

    Attributes:
        let_go: set, it works.
        given: how many times it was given work.
        begun: how many times it has come to some.
    """

    def __init__(self) -> None:
        super().__init__(1)
        self.let_go = threading.Event()
        self.let_go.set()
        self.given = 0
        self.begun = 0

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """See `Executor.submit`."""
        self.given += 1

        def work() -> T:
            self.begun += 1
            assert self.let_go.wait(10), "nobody has let it go"
            return fn(*args, **kwargs)

        return super().submit(work)
