"""The answers of a leader's node to one follower's, on their way out: in order, and not more than it takes.

A body is read from its segment only when it is its turn: at once where it is in the page cache, else on a
thread, for which the answers behind it wait.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

from envelope.errors import StorageError
from envelope.types import Buffer
from jetstream.log.reader import FileRange
from jetstream.node.disk.leased_range import Body
from jetstream.node.peers.peer_connection import PeerConnection
from jetstream.replica.wire import Answer, FetchRefusal, RefusedMessage, RepairAnswer, encode
from metadata.node.admission.descriptors import DescriptorShare

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Outgoing:
    """An answer and where its body is."""

    handle: int
    answer: Answer | RepairAnswer
    body: Buffer | Body

    def drop(self) -> None:
        """Give up what it holds."""
        if isinstance(self.body, Body):
            self.body.release()


class SessionResponseQueue:
    """The queue of one line.

    Invariants:
        RS1: every lease on a segment is given back exactly once, and not while a thread reads from it.
            Held by test_a_lease_is_kept_while_a_thread_reads_for_a_connection_that_is_gone.
        RS2: at most one answer of either kind waits for each stream: the newest, as it answers the newest
            fetch, or the newest question of a repair.
            Held by test_of_two_answers_of_one_stream_that_wait_only_the_newer_one_is_sent.
    """

    def __init__(
        self, line: PeerConnection, executor: Executor | None, crashed: Callable[[BaseException], None]
    ) -> None:
        """``executor`` reads what is not in the page cache; None is the loop's own."""
        self._line = line
        self._executor = executor
        self._crashed = crashed
        self._waiting: dict[tuple[int, bool], _Outgoing] = {}
        self._is_reading = False
        self._is_closed = False

    def put(self, handle: int, answer: Answer | RepairAnswer, body: Buffer | FileRange | None) -> None:
        """Send an answer under ``handle`` as soon as there is room.

        Raises:
            UnavailableError: the segment of the body was removed: plan again. Nothing was queued.
        """
        assert not self._is_closed, "nothing is answered on a session that is over"
        taken: Buffer | Body
        match body:
            case None:
                taken = b""
            case FileRange():
                taken = Body.leased(body, share=DescriptorShare.NODE) if body.length else b""
            case _:
                taken = body
                if not (self._waiting or self._is_reading or self._line.is_full):
                    self._line.send(encode(answer, handle), body)
                    return
        place = handle, isinstance(answer, RepairAnswer)
        before = self._waiting.get(place)
        if before is not None:
            before.drop()
        self._waiting[place] = _Outgoing(handle, answer, taken)  # in the place of the one before
        self.go_on()

    def go_on(self) -> None:
        """Send what there is room for."""
        while self._waiting and not self._is_reading and not self._line.is_full:
            self._send(self._waiting.pop(next(iter(self._waiting))))
        self._line.is_awaited = bool(self._waiting)

    def close(self) -> None:
        """Drop everything."""
        self._is_closed = True
        for outgoing in self._waiting.values():
            outgoing.drop()
        self._waiting.clear()

    def _send(self, outgoing: _Outgoing) -> None:
        body, header = outgoing.body, encode(outgoing.answer, outgoing.handle)
        if not isinstance(body, Body):
            self._line.send(header, body)
            return
        length = body.end - body.position
        frame = bytearray(len(header) + length)
        frame[: len(header)] = header
        room = memoryview(frame)[len(header) :]
        filled = _read_cached(body, room)
        if filled == length:
            body.release()
            self._line.send(frame)
            return
        self._is_reading = True
        loop = asyncio.get_running_loop()
        reading = loop.run_in_executor(self._executor, _read, body, room, filled)

        def read(done: asyncio.Future[None]) -> None:
            self._read(done, outgoing, body, frame)

        reading.add_done_callback(read)

    def _read(self, reading: asyncio.Future[None], outgoing: _Outgoing, body: Body, frame: bytearray) -> None:
        """Go on after a body that was read on a thread."""
        self._is_reading = False
        body.release()
        if self._is_closed or reading.cancelled():
            return
        error = reading.exception()
        if error is None:
            self._line.send(frame)
        elif isinstance(error, OSError | StorageError):
            base = body.file_range.segment.base
            _log.error("cannot read for a follower segment=%d error=%r runbook=RB-01", base, error)
            self._line.send(encode(_refusal(outgoing.answer), outgoing.handle))
        else:
            self._crashed(error)
        self.go_on()


def _refusal(answer: Answer | RepairAnswer) -> RefusedMessage | RepairAnswer:
    """Return what is said in the place of batches that cannot be read."""
    if isinstance(answer, RepairAnswer):
        return RepairAnswer(answer.base, answer.base)
    return RefusedMessage(answer.leader_epoch, FetchRefusal.CANNOT_READ)


def _read_cached(body: Body, room: memoryview) -> int:
    """Read from the page cache; return how many bytes were there, from the first on."""
    if not room:
        return 0
    try:
        return os.preadv(body.fileno, [room], body.position, os.RWF_NOWAIT)
    except OSError:
        # EAGAIN: not in memory. EOPNOTSUPP: this file system cannot tell, so a thread reads.
        return 0


def _read(body: Body, room: memoryview, filled: int) -> None:
    """Read the rest of a body; blocks, for a thread.

    Raises:
        OSError: the disk cannot read it.
        StorageError: the file ends inside the range.
    """
    while filled < len(room):
        count = os.preadv(body.fileno, [room[filled:]], body.position + filled)
        if count == 0:
            raise StorageError(f"the segment ends at byte {body.position + filled}")
        filled += count
