"""The blocking facade: signatures and docstrings are those of the asynchronous client."""

import inspect
import pydoc
from collections.abc import Callable
from typing import Any

import pytest

from jetstream.client.admin.streams import Streams
from jetstream.client.blocking.admin import BlockingStreams
from jetstream.client.blocking.client import BlockingClient
from jetstream.client.blocking.consumer import BlockingConsumer
from jetstream.client.blocking.facade import Facade, awaited, on_loop
from jetstream.client.blocking.loop_thread import LoopThread
from jetstream.client.blocking.table import BlockingTable
from jetstream.client.connection import JetstreamClient
from jetstream.client.consume.consumer import Consumer
from jetstream.client.read.stream_table import StreamTable

PAIRS = [
    (BlockingStreams.create, Streams.create),
    (BlockingStreams.update, Streams.update),
    (BlockingClient.publish, JetstreamClient.publish),
    (BlockingClient.boundary, JetstreamClient.boundary),
    (BlockingConsumer.commit, Consumer.commit),
    (BlockingConsumer.seek, Consumer.seek),
    (BlockingTable.keys, StreamTable.keys),
]


@pytest.mark.parametrize(("blocking", "asynchronous"), PAIRS)
def test_a_blocking_method_has_the_signature_and_docstring_of_the_asynchronous_one(
    blocking: Callable[..., Any], asynchronous: Callable[..., Any]
) -> None:
    assert inspect.signature(blocking) == inspect.signature(asynchronous)
    assert inspect.getdoc(blocking) == inspect.getdoc(asynchronous) is not None
    assert not inspect.iscoroutinefunction(blocking)


def test_help_shows_parameters_and_no_coroutine() -> None:
    shown = pydoc.plain(pydoc.render_doc(BlockingStreams))
    assert "restore(self, name: str, incarnation: str | None = None, replicas: int | None = None)" in shown
    assert "async" not in shown


class _Counter:
    def __init__(self) -> None:
        self.count = 0

    async def add(self, number: int, *, times: int = 1) -> int:
        return self.add_now(number * times)

    def add_now(self, number: int) -> int:
        if number < 0:
            raise ValueError(number)
        self.count += number
        return self.count


class _BlockingCounter(Facade[_Counter]):
    add = awaited(_Counter.add)
    add_now = on_loop(_Counter.add_now)


def test_a_facade_returns_results_and_raises_errors_of_the_loops_thread() -> None:
    thread = LoopThread()
    try:
        counter = _BlockingCounter(thread, _Counter())
        assert counter.add(2, times=3) == 6
        assert counter.add_now(1) == 7
        with pytest.raises(ValueError, match="-1"):
            counter.add(-1)
        with pytest.raises(ValueError, match="-2"):
            counter.add_now(-2)
    finally:
        thread.close(None)
