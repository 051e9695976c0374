"""Answers to the followers of one stream: ranges of the log's files, or where the logs part."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from envelope.errors import JetstreamError, UnavailableError
from envelope.limits import MIB
from envelope.types import Buffer, LeaderEpoch, NodeId, Offset
from jetstream.log.format.batch import BatchHeader
from jetstream.log.reader import FileRange, IndexUnloaded, read_tail
from jetstream.log.segments.segment import PlanAgain
from jetstream.log.state.epochs import NO_EPOCH
from jetstream.node.disk.history_file import LastTxid, PublisherState, encode_note, sessions_of
from jetstream.node.replicas.context import NodeServices, ReplicaContext
from jetstream.node.replicas.hot_batches import HotBatches
from jetstream.replica.leader_events import AnswerFollower, ServeFollower
from jetstream.replica.wire import (
    Answer,
    BatchesMessage,
    FetchRefusal,
    RefusedMessage,
    StartOverMessage,
)

_log = logging.getLogger(__name__)
T = TypeVar("T")

_ANSWER_BYTES: Final = 4 * MIB
"""Of batches in one answer; a larger batch goes alone."""
_HOT_BYTES_MAX: Final = 16 * MIB
"""Of a stream's batches in memory: several times what is under way while nobody lags."""


class FollowerResponses:
    """Sends what the leader's machine has decided, during one reign.

    Attributes:
        hot: batches that were written and are not committed yet.
    """

    def __init__(self, context: ReplicaContext, leader_epoch: LeaderEpoch, services: NodeServices) -> None:
        self._context = context
        self._leader_epoch = leader_epoch
        self._services = services
        self._catch_up = services.cluster.catch_up
        self._has_ended = False
        self._joining: frozenset[NodeId] = frozenset()
        self.hot = HotBatches(_HOT_BYTES_MAX, _ANSWER_BYTES)
        self._loop = asyncio.get_running_loop()

    def end(self) -> None:
        """Serve nobody any more who still waits for a turn."""
        self._has_ended = True
        self.hot = HotBatches(0, 0)

    def serve_in_turn(self, serve: ServeFollower, *, joins: bool) -> None:
        """Serve a follower outside the ISR, once it is its turn."""
        follower = (self._context.incarnation, serve.follower)
        self._catch_up.serve(follower, lambda: self._catch_up.spend(self.serve(serve, joins=joins)))

    def serve(self, serve: ServeFollower, *, joins: bool = False) -> int:
        """Send batches from the follower's end on, as many as one answer holds; or that there are none.

        A follower that ``joins`` the ISR gets the note with every answer that brings it to the high
        watermark: some of the records that it speaks of may be gone.

        Returns:
            How many bytes, as far as that is known now.
        """
        if joins:
            self._joining |= {serve.follower}
        elif self._joining:
            self._joining -= {serve.follower}
        if self._has_ended:
            return 0
        hot = self.hot.find(serve.log_end)
        if hot is not None:
            end, data = hot
            length = len(data)
            self._send(serve, end, self._leader_epoch, data, length)
            return length
        try:
            found = self._find(serve, load=False)
        except IndexUnloaded:
            self._find_on_thread(serve)
            return _ANSWER_BYTES
        except JetstreamError as error:
            self._cannot_serve(serve, error)
            return 0
        if found.is_verified:
            self._send_range(serve, found)
        else:
            self._find_on_thread(serve)
        return found.length

    def respond(self, action: AnswerFollower, high_watermark: Offset) -> None:
        """Send an answer without batches."""
        answer = action.answer
        if isinstance(answer, StartOverMessage):
            answer = replace(answer, note=self._note(high_watermark))
        self._answer(action.follower, answer)

    def _find(self, serve: ServeFollower, *, load: bool) -> FileRange:
        return self._context.log.reader.plan_read(serve.log_end, _ANSWER_BYTES, serve.limit, load=load)

    def _find_on_thread(self, serve: ServeFollower) -> None:
        """Read where it holds nobody up: the index of an old segment, and batches, to find damage.

        Followers would refuse damage as well, but only who has it can have it repaired.
        """
        self._on_thread(serve, lambda: self._find_verified(serve), partial(self._send_range, serve))

    def _find_verified(self, serve: ServeFollower) -> FileRange:
        found = self._find(serve, load=True)
        self._context.log.reader.verify_range(found)
        return found

    def _cut_on_thread(self, serve: ServeFollower, file_range: FileRange) -> None:
        """Send the rest of a batch that compaction here has given a longer range than the follower knows."""

        def send(tail: tuple[BatchHeader, Buffer]) -> None:
            header, frame = tail
            self._send(serve, header.next, file_range.leader_epoch, frame, len(frame))

        self._on_thread(serve, partial(read_tail, self._context.log.reader, serve.log_end, serve.limit), send)

    def _on_thread(self, serve: ServeFollower, work: Callable[[], T], then: Callable[[T], None]) -> None:
        """Do ``work``, which reads files, then go on; again if the log has changed under it."""

        def done(worked: "asyncio.Future[T]") -> None:
            error = worked.exception()
            if error is None:
                then(worked.result())
            elif isinstance(error, PlanAgain):
                self._on_thread(serve, work, then)
            elif isinstance(error, JetstreamError):
                self._cannot_serve(serve, error)
            else:
                self._services.crash.report(error)

        self._loop.run_in_executor(None, work).add_done_callback(done)

    def _send_range(self, serve: ServeFollower, file_range: FileRange) -> None:
        length = file_range.length
        if file_range.base < serve.log_end and length and serve.last_epoch != NO_EPOCH:
            self._cut_on_thread(serve, file_range)
            return
        self._send(serve, file_range.next, file_range.leader_epoch, file_range if length else None, length)

    def _send(
        self,
        serve: ServeFollower,
        end: Offset,
        epoch: LeaderEpoch,
        body: Buffer | FileRange | None,
        length: int,
    ) -> None:
        context, sessions = self._context, self._services.cluster.sessions
        log, follower = context.opened.log, serve.follower
        message = BatchesMessage(
            leader_epoch=self._leader_epoch,
            last_epoch=serve.last_epoch,
            base=serve.log_end,
            next=end,
            high_watermark=serve.high_watermark,
            log_start_offset=log.reader.log_start_offset,
            # Read after the batches were found: where tombstones are missing in them, this is raised already.
            purged_end=log.compaction.purged_end,
            epochs=((epoch, serve.log_end),) if length else (),
            body_bytes=length,
            note=self._note(serve.high_watermark)
            if follower in self._joining and end >= serve.high_watermark
            else b"",
        )
        try:
            sessions.answer(follower, context.name, context.incarnation, message, body)
        except (
            UnavailableError
        ) as error:  # the segment was removed since it was found: the follower asks again
            _log.info("not served follower=%s stream=%s error=%s", follower, context.name, error)
            self._answer(follower, RefusedMessage(self._leader_epoch, FetchRefusal.CANNOT_READ))

    def _note(self, high_watermark: Offset) -> bytes:
        """Return what is known of the records below, as the note's file says it; empty if that is nothing."""
        opened = self._context.opened
        last = LastTxid(high_watermark, opened.note.latest.txid)
        noted = PublisherState(last, sessions_of(opened.history.sessions, high_watermark))
        return encode_note(noted) if noted.sessions or last.txid is not None else b""

    def _cannot_serve(self, serve: ServeFollower, error: JetstreamError) -> None:
        _log.error(
            "cannot serve follower=%s stream=%s offset=%d error=%s runbook=RB-01",
            serve.follower,
            self._context.name,
            serve.log_end,
            error,
        )
        self._answer(serve.follower, RefusedMessage(self._leader_epoch, FetchRefusal.CANNOT_READ))

    def _answer(self, follower: NodeId, message: Answer) -> None:
        name, incarnation = self._context.name, self._context.incarnation
        self._services.cluster.sessions.answer(follower, name, incarnation, message)
