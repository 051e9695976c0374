"""An object store on real files that breaks off where a test says: before a call, after it, or in a write."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Literal

import pyarrow as pa

from envelope.types import Buffer
from jetstream.tier.object_store import ObjectStore

When = Literal["before", "after", "torn"]


class Broken(Exception):
    """The process is over."""


class FailingStore(ObjectStore):
    """Breaks off at one call of all, by its number; made by `FailingStore.at`, then told by `break_at`."""

    _number = -1
    _when: When = "before"
    _calls = 0

    def break_at(self, number: int, when: When) -> "FailingStore":
        """Break off at call ``number``, from 0 on; ``torn``: only writes are counted, and half is written."""
        self._number, self._when = number, when
        return self

    @contextmanager
    def step(self) -> Iterator[None]:
        """Count what is done in a block as a call."""
        is_here = self._when != "torn" and self._calls == self._number
        self._calls += self._when != "torn"
        if is_here and self._when == "before":
            raise Broken
        yield
        if is_here:
            raise Broken

    def put(self, path: str, chunks: Iterable[Buffer]) -> None:
        if self._when == "torn":
            self._calls += 1
            if self._calls > self._number:
                content = b"".join(bytes(chunk) for chunk in chunks)
                super().put(path, [content[: len(content) // 2]])
                raise Broken
        with self.step():
            super().put(path, chunks)

    def settle(self, path: str) -> None:
        with self.step():
            super().settle(path)

    def sizes(self, directory: str) -> dict[str, int]:
        with self.step():
            return super().sizes(directory)

    def chunks(self, path: str) -> Iterator[Buffer]:
        with self.step():
            yield from super().chunks(path)

    @contextmanager
    def opened(self, path: str) -> Iterator[pa.NativeFile]:
        with self.step(), super().opened(path) as stream:
            yield stream

    def delete(self, path: str) -> None:
        with self.step():
            super().delete(path)

    def delete_directory(self, directory: str) -> None:
        with self.step():
            super().delete_directory(directory)
