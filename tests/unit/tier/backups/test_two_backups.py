"""Two backups write the same object at once, and one of them is killed."""

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from tests.support.backup_manifests import backed_up_stream, backup_manifest, backup_object
from tests.support.backups import store_at

PIECES = [bytes([number]) * 100_000 for number in range(10)]
CONTENT = b"".join(PIECES)
OBJECT = replace(backup_object(0, 10), sha256=hashlib.sha256(CONTENT).hexdigest(), size=len(CONTENT))


class Slow(list[bytes]):
    """Pieces; something is done before each of them in the second pass, the first one hashes."""

    def __init__(self, done: Callable[[int], None]) -> None:
        super().__init__(PIECES)
        self._done = done
        self._passes = 0

    def __iter__(self) -> Iterator[bytes]:
        self._passes += 1
        for number, piece in enumerate(super().__iter__()):
            if self._passes == 2:
                self._done(number)
            yield piece


def test_one_that_is_killed_tears_no_object_of_another(tmp_path: Path) -> None:
    first, second = store_at(tmp_path), store_at(tmp_path)

    def end(number: int) -> None:
        if number == 3:
            os._exit(9)

    def meanwhile(number: int) -> None:
        if number == 8:
            child = os.fork()
            if child == 0:
                try:
                    second.put_object(Slow(end), ())
                finally:
                    os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9

    assert first.put_object(Slow(meanwhile), ())[1]
    first.put_manifest(backup_manifest(backed_up_stream(OBJECT, end=10)))
    store_at(tmp_path).check(store_at(tmp_path).manifest())
    assert b"".join(bytes(each) for each in store_at(tmp_path).chunks(OBJECT)) == CONTENT
