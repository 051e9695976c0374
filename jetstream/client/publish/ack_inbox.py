"""The inbox for all acks of a client: a counter instead of a subscription for each message.

Source: the muxed reply inbox of NATS's own clients; without its future and its lock for each request.
"""

import asyncio
from collections import deque
from collections.abc import Generator, Sequence
from typing import Any, Final, Protocol, TypeVar

from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg

from envelope.errors import ConnectionLost, DeadlinePassed, JetstreamError, NoResponders
from jetstream.client.publish.messages import PublishAck, PublishRefusal, parse_ack

_NO_RESPONDERS: Final = "503"

_T = TypeVar("_T")


class ClaimedFuture(asyncio.Future[_T]):
    """A future that notices whether anybody has looked at how it ended."""

    claimed = False
    """Whether the outcome was handed to somebody: then a failure is not reported a second time."""

    def result(self) -> _T:
        """Return the outcome, or raise why there is none."""
        self.claimed = True
        return super().result()

    def exception(self) -> BaseException | None:
        """Return why there is no outcome, or None."""
        self.claimed = True
        return super().exception()

    def __await__(self) -> Generator[Any, None, _T]:
        try:
            return (yield from super().__await__())
        finally:
            self.claimed = self.claimed or self.done()

    __iter__ = __await__


AckFuture = ClaimedFuture[PublishAck]
"""The ack of one message."""

AcksFuture = ClaimedFuture[list[PublishAck]]
"""The acks of one message by several streams."""


class Expectation(Protocol):
    """The answers that one message waits for."""

    token: int

    def on_answer(self, answer: PublishAck | PublishRefusal) -> bool:
        """Record an answer; return whether no more are expected."""

    def on_failure(self, error: JetstreamError) -> None:
        """Handle that there will be no answer."""


class OneAck:
    """Waits for the first answer."""

    __slots__ = ("future", "token")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.token = 0
        self.future: AckFuture = ClaimedFuture(loop=loop)

    def on_answer(self, answer: PublishAck | PublishRefusal) -> bool:
        """Take the first answer."""
        if isinstance(answer, PublishRefusal):
            self.on_failure(answer.error)
        elif not self.future.done():
            self.future.set_result(answer)
        return True

    def on_failure(self, error: JetstreamError) -> None:
        """End without an ack."""
        if not self.future.done():
            self.future.set_exception(error)


class AckOfEach:
    """Waits for the answers of all named streams."""

    __slots__ = ("_acks", "_streams", "future", "token")

    def __init__(self, streams: Sequence[str], loop: asyncio.AbstractEventLoop) -> None:
        self.token = 0
        self.future: AcksFuture = ClaimedFuture(loop=loop)
        self._streams = tuple(streams)
        self._acks: dict[str, PublishAck] = {}

    def on_answer(self, answer: PublishAck | PublishRefusal) -> bool:
        """Take the answer of a named stream, or of a partition of one; others are not ours to wait for."""
        named = next((name for name in answer.names if name in self._streams), None)
        if isinstance(answer, PublishRefusal):
            if named is not None:
                self.on_failure(answer.error)
            return self.future.done()
        if named is not None:
            self._acks[named] = answer
        if len(self._acks) == len(set(self._streams)) and not self.future.done():
            self.future.set_result([self._acks[stream] for stream in self._streams])
        return self.future.done()

    def on_failure(self, error: JetstreamError) -> None:
        """End without all the acks; the error names those that came."""
        if not self.future.done():
            error.detail["acked_by"] = ",".join(sorted(self._acks))
            self.future.set_exception(error)


class AckInbox:
    """Hands out reply subjects and brings their answers to the expectations.

    Invariants:
        C8: an expectation leaves exactly once: answered, refused, overdue, withdrawn or abandoned.
            Held by test_a_failing_block_gives_up_what_is_outstanding.
        C9: each lane is in the order of its deadlines, and empty or headed by one that still waits.
            Held by test_no_ack_in_time_means_unknown.
    """

    def __init__(self, nats: NatsClient) -> None:
        """Nothing is subscribed before `open`."""
        self._nats = nats
        self._loop = asyncio.get_running_loop()
        self._prefix = f"{nats.new_inbox()}."
        self._waiting: dict[int, tuple[Expectation, float]] = {}
        self._token = 0
        # One lane for each timeout in use: within a lane, deadlines come in the order of sending.
        self._lanes: dict[float, deque[tuple[float, int]]] = {}

    async def open(self) -> None:
        """Subscribe."""
        await self._nats.subscribe(
            f"{self._prefix}*", cb=self._on_message, pending_msgs_limit=-1, pending_bytes_limit=-1
        )

    def expect(self, expectation: Expectation, timeout: float) -> str:
        """Return the reply subject whose answers within ``timeout`` s ``expectation`` gets."""
        self._token += 1
        token = expectation.token = self._token
        self._waiting[token] = expectation, timeout
        lane = self._lanes.get(timeout)
        if lane is None:
            lane = self._lanes[timeout] = deque()
            self._loop.call_later(timeout, self._expire, timeout)
        lane.append((self._loop.time() + timeout, token))
        return f"{self._prefix}{token}"

    def withdraw(self, expectation: Expectation) -> None:
        """Wait no more for it."""
        _, timeout = self._waiting.pop(expectation.token, (None, None))
        if timeout is not None and timeout in self._lanes:
            self._tidy(self._lanes[timeout])

    def _tidy(self, lane: deque[tuple[float, int]]) -> None:
        """Acks come nearly in order: what has left is at the head, or will be soon."""
        while lane and lane[0][1] not in self._waiting:
            lane.popleft()

    def abandon(self, error: JetstreamError | None = None) -> None:
        """Fail all expectations."""
        waiting, self._waiting = self._waiting, {}
        for expectation, _ in waiting.values():
            expectation.on_failure(error or ConnectionLost("the client was closed before the ack came"))
        self._lanes.clear()

    async def _on_message(self, message: Msg) -> None:
        tail = message.subject[len(self._prefix) :]
        waiting = self._waiting.get(int(tail)) if tail.isdecimal() else None
        if waiting is None:
            return
        expectation = waiting[0]
        if not message.data and message.headers and message.headers.get("Status") == _NO_RESPONDERS:
            expectation.on_failure(NoResponders("no stream is bound to the subject, or its node is away"))
            self.withdraw(expectation)
            return
        answer = parse_ack(message.data)
        if answer is not None and expectation.on_answer(answer):
            self.withdraw(expectation)

    def _expire(self, timeout: float) -> None:
        """End the overdue expectations of one lane, and schedule the next call for its next deadline."""
        lane = self._lanes.get(timeout)
        if lane is None:
            return
        now = self._loop.time()
        while lane and lane[0][0] <= now:
            expectation, _ = self._waiting.pop(lane[0][1])
            self._tidy(lane)
            expectation.on_failure(
                DeadlinePassed(f"no ack within {timeout:g} s: whether the message is stored is unknown")
            )
        if lane:
            self._loop.call_at(lane[0][0], self._expire, timeout)
        else:
            del self._lanes[timeout]
