"""Methods of asynchronous objects for callers without an event loop, each declared once.

``commit = awaited(Cursors.commit)`` in the body of a `Facade` is a method with the signature and docstring of
`Cursors.commit`, for type checkers and for ``help()``; it returns what the coroutine returns.
"""

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from jetstream.client.blocking.loop_thread import LoopThread

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Target_co = TypeVar("_Target_co", covariant=True)


class Facade(Generic[_Target_co]):
    """An asynchronous object whose loop runs in another thread; any thread may use it."""

    def __init__(self, thread: LoopThread, target: _Target_co) -> None:
        self._thread = thread
        self._target = target

    def _on_loop(self, function: Callable[[], _T]) -> _T:
        async def called() -> _T:
            return function()

        return self._thread.run(called())


def awaited(
    method: Callable[Concatenate[_Target_co, _P], Coroutine[Any, Any, _T]],
) -> Callable[Concatenate[Facade[_Target_co], _P], _T]:
    """Return a method of a `Facade` that runs ``method`` in the loop's thread and waits for its result."""

    @wraps(method)
    def call(self: Facade[_Target_co], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return self._thread.run(method(self._target, *args, **kwargs))

    return call


def on_loop(
    method: Callable[Concatenate[_Target_co, _P], _T],
) -> Callable[Concatenate[Facade[_Target_co], _P], _T]:
    """Return a method of a `Facade` that calls ``method``, which does not wait, in the loop's thread."""

    @wraps(method)
    def call(self: Facade[_Target_co], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return self._on_loop(lambda: method(self._target, *args, **kwargs))

    return call
