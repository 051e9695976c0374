"""The inbox for all acks of a client: two counters instead of a subscription for each message.

A reply subject ends with the number of an expectation and the number of a message of it. All answers that
come together are read together, and handed to each expectation in one call.

Source: the muxed reply inbox of NATS's own clients; without its future and its lock for each request.
"""

import asyncio
import re
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, TypeVar

from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg

from envelope.acks import PLAIN_ACK
from envelope.errors import ConnectionLost, DeadlinePassed, JetstreamError, NoResponders, Unauthorized
from jetstream.client.nodes.denials import Denial
from jetstream.client.nodes.nats_seam import RunParser
from jetstream.client.publish.messages import PublishAck, PublishRefusal, parse_ack, plain_acks

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
"""The acks of one message by several streams, or of several messages."""

Answer = PublishAck | PublishRefusal

Answers = Iterable[tuple[int, int, Answer]]
"""The number of the expectation, that of a message in it, and the answer to this message."""


Listener = Callable[["Expected", int, Sequence[ClaimedFuture[Any]]], None]
"""Called with an expectation, with how many more of its messages have an answer or get none, and with a
failed future for each of these that failed."""


def _nobody(_expectation: "Expected", _count: int, _failed: Sequence[ClaimedFuture[Any]]) -> None:
    """Listen to nothing."""


class OneAck:
    """Waits for the first answer to one message.

    Attributes:
        future: of the ack.
        timeout: seconds.
        token: its number; see `AckInbox.address`.
        subjects: of its messages, in their order; whoever sends one adds its subject.
        unanswered: how many messages have no answer and may get one.
    """

    __slots__ = ("_listener", "future", "subjects", "timeout", "token", "unanswered")

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout: float, listener: Listener = _nobody) -> None:
        self.token = 0
        self.subjects: list[str] = []
        self.timeout = timeout
        self.unanswered = 1
        self.future: AckFuture = ClaimedFuture(loop=loop)
        self._listener = listener

    def on_answers(self, answers: Answers) -> bool:
        """Take the first answer; return whether no more are expected."""
        for _, _, answer in answers:
            if isinstance(answer, PublishRefusal):
                self.on_failure(answer.error)
            elif self.unanswered:
                self.unanswered = 0
                if not self.future.done():
                    self.future.set_result(answer)
                self._listener(self, 1, ())
        return True

    def on_failure(self, error: JetstreamError) -> None:
        """End without an ack."""
        if self.unanswered:
            self.unanswered = 0
            self._listener(self, 1, _failed(self.future, error))


class AckOfEach:
    """Waits for the answers of all named streams to one message; attributes as of `OneAck`."""

    __slots__ = ("_acks", "_listener", "_streams", "future", "subjects", "timeout", "token", "unanswered")

    def __init__(
        self,
        streams: Sequence[str],
        loop: asyncio.AbstractEventLoop,
        timeout: float,
        listener: Listener = _nobody,
    ) -> None:
        self.token = 0
        self.subjects: list[str] = []
        self.timeout = timeout
        self.unanswered = 1
        self.future: AcksFuture = ClaimedFuture(loop=loop)
        self._streams = tuple(streams)
        self._acks: dict[str, PublishAck] = {}
        self._listener = listener

    def expect_all(self) -> None:
        """Expect the answers to the one message that there is, as is done from the start."""
        assert len(self.subjects) == 1, "a message has its own"

    def on_answers(self, answers: Answers) -> bool:
        """Take the answers of named streams, or of partitions of them; others are not ours to wait for."""
        for _, _, answer in answers:
            named = next((name for name in answer.names if name in self._streams), None)
            if not isinstance(answer, PublishRefusal):
                if named is not None:
                    self._acks[named] = answer
            elif named is not None or isinstance(answer.error, NoResponders | Unauthorized):
                self.on_failure(answer.error)
        if self.unanswered and len(self._acks) == len(set(self._streams)):
            self.unanswered = 0
            if not self.future.done():
                self.future.set_result([self._acks[stream] for stream in self._streams])
            self._listener(self, 1, ())
        return not self.unanswered

    def on_failure(self, error: JetstreamError) -> None:
        """End without all the acks; the error names those that came."""
        if self.unanswered:
            self.unanswered = 0
            error.detail["acked_by"] = ",".join(sorted(self._acks))
            self._listener(self, 1, _failed(self.future, error))


class AckBlock:
    """Waits for the first answer to each of many messages; one future, attributes as of `OneAck`.

    The future has their acks in order. It fails with the first failure, whether or not others have answers.
    """

    __slots__ = ("_acks", "_listener", "_loop", "future", "subjects", "timeout", "token", "unanswered")

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout: float, listener: Listener) -> None:
        self.token = 0
        self.subjects: list[str] = []
        self._loop = loop
        self.timeout = timeout
        self.unanswered = 0
        self.future: AcksFuture = ClaimedFuture(loop=loop)
        self._acks: list[Answer | None] = []
        self._listener = listener

    def expect_all(self) -> None:
        """Expect answers to a message on each of the subjects."""
        self.unanswered = len(self.subjects)
        self._acks = [None] * self.unanswered

    def on_answers(self, answers: Answers) -> bool:
        """Take the first answer to each message; return whether no more are expected."""
        acks, count = self._acks, 0
        failures: list[JetstreamError] = []
        for _, number, answer in answers:
            if number < len(acks) and acks[number] is None:
                acks[number] = answer
                count += 1
                if isinstance(answer, PublishRefusal):
                    failures.append(answer.error)
        self._record(count, failures)
        return not self.unanswered

    def on_failure(self, error: JetstreamError) -> None:
        """Give up all messages that have no answer."""
        self._record(self.unanswered, [error] * self.unanswered)

    def _record(self, count: int, failures: Sequence[JetstreamError]) -> None:
        self.unanswered -= count
        failed: list[ClaimedFuture[Any]] = []
        for error in failures:
            future: AcksFuture = ClaimedFuture(loop=self._loop) if self.future.done() else self.future
            failed += _failed(future, error)
        if not self.unanswered and not self.future.done():
            self.future.set_result([ack for ack in self._acks if isinstance(ack, PublishAck)])
        self._listener(self, count, failed)


def _failed(future: ClaimedFuture[_T], error: JetstreamError) -> Sequence[ClaimedFuture[_T]]:
    """Let a future fail; return it, unless its caller does not wait for it any more."""
    if future.done():
        return ()
    future.set_exception(error)
    return (future,)


Expected = OneAck | AckOfEach | AckBlock


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
        self._prefix = f"{nats.new_inbox()}.".encode()
        self._waiting: dict[int, Expected] = {}
        self._unheard: Denial | None = None
        """Why no answer can come, until one comes all the same."""
        self._token = 0
        # One lane for each timeout in use: within a lane, deadlines come in the order of sending.
        self._lanes: dict[float, deque[tuple[float, int]]] = {}

    async def open(self) -> None:
        """Subscribe."""
        RunParser.of(self._nats).denials.add(self._on_denial)
        subscription = await self._nats.subscribe(
            f"{self._prefix.decode()}*.*", cb=self._on_message, pending_msgs_limit=-1, pending_bytes_limit=-1
        )
        line = b"MSG %b" % self._prefix
        self._run = re.compile(
            rb"%b(\d{1,18})\.(\d{1,18}) %d (\d{1,18})\r\n(%b)\r\n|(.+)"
            % (re.escape(line), subscription._id, PLAIN_ACK),  # noqa: SLF001 - nats-py says it nowhere else
            re.DOTALL,
        )
        RunParser.of(self._nats).take(line, self._take)

    def address(self, expectation: Expected) -> bytes:
        """Return what the reply subjects begin with that bring answers to ``expectation``.

        The number of a message follows there, from 0.
        """
        self._token += 1
        expectation.token = self._token
        return b"%b%d." % (self._prefix, self._token)

    def expect(self, expectation: Expected) -> None:
        """Pass on the answers that come within its timeout, from now on; it has an address."""
        token, timeout = expectation.token, expectation.timeout
        self._waiting[token] = expectation
        lane = self._lanes.get(timeout)
        if lane is None:
            lane = self._lanes[timeout] = deque()
            self._loop.call_later(timeout, self._expire, timeout)
        lane.append((self._loop.time() + timeout, token))
        if self._unheard is not None:
            self._loop.call_soon(self._give_up_unheard, token)

    def withdraw(self, expectation: Expected) -> None:
        """Wait no more for it."""
        if self._waiting.pop(expectation.token, None) is not None and expectation.timeout in self._lanes:
            self._tidy(self._lanes[expectation.timeout])

    def _tidy(self, lane: deque[tuple[float, int]]) -> None:
        """Acks come nearly in order: what has left is at the head, or will be soon."""
        while lane and lane[0][1] not in self._waiting:
            lane.popleft()

    def abandon(self, error: JetstreamError | None = None) -> None:
        """Fail all expectations."""
        waiting, self._waiting = self._waiting, {}
        for expectation in waiting.values():
            expectation.on_failure(error or ConnectionLost("the client was closed before the ack came"))
        self._lanes.clear()

    def _on_denial(self, denial: Denial) -> None:
        if denial.is_publish:
            error = Unauthorized(denial.text)
            for token, expectation in tuple(self._waiting.items()):
                refusals = [
                    (token, number, PublishRefusal("", error))
                    for number, subject in enumerate(expectation.subjects)
                    if subject == denial.subject
                ]
                if refusals and expectation.on_answers(refusals):
                    self.withdraw(expectation)
        elif denial.subject.encode().startswith(self._prefix):
            self._unheard = denial
            for token in tuple(self._waiting):
                self._give_up_unheard(token)

    def _give_up_unheard(self, token: int) -> None:
        expectation = self._waiting.get(token)
        if expectation is not None and self._unheard is not None:
            text = f"no ack can come, whether the message is stored is unknown: {self._unheard.text}"
            self.withdraw(expectation)
            expectation.on_failure(DeadlinePassed(text))

    def _take(self, data: bytes, position: int) -> int:
        """Take the plain acks that follow each other from ``position`` on; return where they end."""
        rows = self._run.findall(data, position)
        rest: bytes = rows[-1][-1]
        if rest:
            rows.pop()
        if not rows:
            return position
        tokens, numbers, sizes, payloads, streams, offsets, epochs, _ = zip(*rows, strict=True)
        if list(map(int, sizes)) != list(map(len, payloads)):
            return position
        self._nats.stats["in_msgs"] += len(payloads)
        self._nats.stats["in_bytes"] += sum(map(len, payloads))
        acks = plain_acks(streams, offsets, epochs)
        self._on_answers(zip(map(int, tokens), map(int, numbers), acks, strict=True))
        return len(data) - len(rest)

    async def _on_message(self, message: Msg) -> None:
        """Handle an answer that is no plain ack."""
        token, _, number = message.subject[len(self._prefix) :].partition(".")
        if not (token.isdecimal() and number.isdecimal()):
            return
        answer: Answer | None
        if not message.data and message.headers and message.headers.get("Status") == _NO_RESPONDERS:
            error = NoResponders("no stream is bound to the subject, or its node is away")
            answer = PublishRefusal("", error)
        else:
            answer = parse_ack(message.data)
        if answer is not None:
            self._on_answers([(int(token), int(number), answer)])

    def _on_answers(self, answers: Answers) -> None:
        self._unheard = None
        for token, its_answers in groupby(answers, itemgetter(0)):
            expectation = self._waiting.get(token)
            if expectation is not None and expectation.on_answers(its_answers):
                self.withdraw(expectation)

    def _expire(self, timeout: float) -> None:
        """End the overdue expectations of one lane, and schedule the next call for its next deadline."""
        lane = self._lanes.get(timeout)
        if lane is None:
            return
        now = self._loop.time()
        while lane and lane[0][0] <= now:
            expectation = self._waiting.pop(lane[0][1])
            self._tidy(lane)
            expectation.on_failure(
                DeadlinePassed(f"no ack within {timeout:g} s: whether the message is stored is unknown")
            )
        if lane:
            self._loop.call_at(lane[0][0], self._expire, timeout)
        else:
            del self._lanes[timeout]
