"""The commits of a consumer: in the background, before records are handed out, or on request.

`Committer` stores the cursors of a member, one commit after the other.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from consumer_groups.assignment.partitions import Claim
from consumer_groups.coordinator.events import CoordinatorRefusal, MemberRefused
from consumer_groups.cursors import CURSOR_OFFSET_MAX, CursorPosition
from consumer_groups.member.commits import CommitFailureEffect, CursorCommit, MemberCommits, failure_effect
from envelope.errors import ConnectionLost, Fenced, JetstreamError, RequestError
from envelope.group_errors import IllegalGeneration, InstanceFenced, MemberFenced, PartitionNotOwned
from envelope.types import Offset
from jetstream.client.consume.membership import GroupMembership
from jetstream.client.consume.options import ConsumeSettings
from jetstream.client.consume.partition_buffers import Delivery, PartitionBuffer, PartitionBuffers
from jetstream.protocol.group_requests import CommitCursors

_log = logging.getLogger(__name__)

_REFUSED_S: Final = 0.1
"""Pause after a commit that was refused: the news why is on its way."""

Places = Callable[[], Mapping[Claim, CursorPosition]]
"""Where the cursors are to be, when it is their turn."""


@dataclass(frozen=True, slots=True)
class _Wish:
    places: Places
    done: asyncio.Future[None]


class Committer:
    """Stores the cursors that were requested since the last commit.

    Invariant:
        C25: one commit is under way at a time.
            Held by test_what_is_processed_is_committed_in_the_background.
    """

    def __init__(self, group: str, member: GroupMembership) -> None:
        self.commits = MemberCommits()
        self._group = group
        self._member = member
        self._wishes: asyncio.Queue[_Wish] = asyncio.Queue()
        self._current: _Wish | None = None
        self._is_over = False

    async def commit(self, places: Places) -> None:
        """Return when the cursors of ``places`` are durable, and those of all earlier calls.

        Raises:
            Fenced: a partition is not this member's any more; its cursor is not stored.
            ConnectionLost: the consumer was closed meanwhile, outcome unknown.
            JetstreamError: the coordinator refuses it.
        """
        if self._is_over:
            raise _left()
        wish = _Wish(places, asyncio.get_running_loop().create_future())
        self._wishes.put_nowait(wish)
        await wish.done

    async def run(self) -> None:
        """Store requested cursors until cancelled; the outcome of requests then, or later, is unknown."""
        try:
            while True:
                self._current = await self._wishes.get()
                await self._fulfil(self._current)
        finally:
            self._is_over = True
            for wish in (self._current, *(self._wishes.get_nowait() for _ in range(self._wishes.qsize()))):
                if wish is not None and not wish.done.done():
                    wish.done.set_exception(_left())

    async def _fulfil(self, wish: _Wish) -> None:
        try:
            for commit in self.commits.due(wish.places()):
                await self._store(commit)
        except JetstreamError as error:
            if not wish.done.done():  # nobody may wait for it any more
                wish.done.set_exception(error)
        else:
            if not wish.done.done():
                wish.done.set_result(None)

    async def _store(self, commit: CursorCommit) -> None:
        asked = self._member.commit(commit)
        if asked is None:
            raise MemberFenced(f"{self._member} has nothing to commit for")
        try:
            await self._member.ask(partial(CommitCursors.of, self._group, asked))
        except (PartitionNotOwned, IllegalGeneration):
            if len(commit.places) == 1:
                raise
            await self._store_singly(commit)
        except (MemberFenced, InstanceFenced) as error:
            refusal = CoordinatorRefusal.of(error)
            self._member.give(MemberRefused(asked.connection, asked.member_id, refusal))
            raise
        else:
            self.commits.has_stored(commit)

    async def _store_singly(self, commit: CursorCommit) -> None:
        """Store what can be, where something of a commit is not this member's any more."""
        refused: JetstreamError | None = None
        for each in commit.places:
            try:
                await self._store(CursorCommit((each,), commit.goes_back))
            except (PartitionNotOwned, IllegalGeneration) as error:
                refused = error
        if refused is not None:
            raise refused


def _left() -> ConnectionLost:
    return ConnectionLost("the consumer was closed: nobody knows whether that is committed")


class ConsumerCommits:
    """The commits of one consumer. A final refusal is raised; cursors of lost partitions are dropped."""

    def __init__(self, settings: ConsumeSettings, buffers: PartitionBuffers, committer: Committer) -> None:
        self._settings = settings
        self._buffers = buffers
        self._committer = committer
        self._known = committer.commits
        self._is_due = asyncio.Event()
        self._taken: set[str] = set()
        """Streams that were taken away since the last commit that was asked for, with progress not stored."""
        self._rows = 0
        """Processed since the last commit in the background."""

    def begin(self, buffer: PartitionBuffer, cursor: CursorPosition | None) -> None:
        """Record the group's cursor of a partition; None: it has none."""
        self._known.begin(buffer.claim, cursor)

    def go_back(self, buffer: PartitionBuffer) -> None:
        """Allow the next commit to be below the cursor: the application, or its ``reset``, goes back."""
        self._known.go_back(buffer.claim)

    def forget(self, buffers: Iterable[PartitionBuffer]) -> None:
        """Commit nothing more for these."""
        self._known.forget(buffer.claim for buffer in buffers)

    def lose(self, buffers: Iterable[PartitionBuffer]) -> None:
        """Record that these are taken away: the next commit raises an error that names what it leaves out."""
        self._taken |= {buffer.stream for buffer in buffers if self._known.due(_places([buffer], _position))}

    def has_begun(self, buffer: PartitionBuffer) -> None:
        """Store the beginning as the cursor where there was none, so that nothing behind it is left out."""
        if self._known.stored(buffer.claim) is None:
            self._is_due.set()

    def has_processed(self, rows: int) -> None:
        """Count processed records; commit at the chosen interval."""
        self._rows += rows
        most = self._settings.commit_records
        if most is not None and self._rows >= most:
            self._is_due.set()

    async def run(self) -> None:
        """Commit in the background, until cancelled."""
        if self._settings.commit == "manual":
            return
        while True:
            try:
                async with asyncio.timeout(self._settings.commit_interval_s):
                    await self._is_due.wait()
            except TimeoutError:
                pass
            self._is_due.clear()
            self._rows = 0
            await self._processed(self._buffers)

    async def here(self) -> None:
        """Commit behind all that was handed out until now; raises as `Committer.commit`.

        Raises:
            MemberFenced: something of it was taken away before; the rest is stored.
        """
        places = _places(self._buffers, _position)
        due = {claim for commit in self._known.due(places) for claim, _ in commit.places}
        wanted = {buffer: places[buffer.claim] for buffer in self._buffers if buffer.claim in due}
        try:
            gone = await self._store(wanted)
        finally:
            taken, self._taken = self._taken, set()
        if taken | gone:
            raise _taken_away(taken | gone)

    async def at(self, offsets: Mapping[str, int]) -> None:
        """Commit the application's offsets, forward or back; raises as `Committer.commit`.

        Raises:
            RequestError: no offset, or a partition that is not this member's.
            MemberFenced: a partition was taken away before the commit; the rest is stored.
        """
        places: dict[PartitionBuffer, CursorPosition] = {}
        for stream, offset in offsets.items():
            buffer = self._buffers.assigned(stream)
            if not 0 <= offset <= CURSOR_OFFSET_MAX:
                raise RequestError(f"{offset} is not an offset")
            places[buffer] = CursorPosition(offset, buffer.incarnation)
            self.go_back(buffer)
        gone = await self._store(places)
        if gone:
            raise _taken_away(gone)

    async def _store(self, places: Mapping[PartitionBuffer, CursorPosition]) -> set[str]:
        """Commit; return the streams that are not this member's any more when it is their turn."""
        gone: set[str] = set()

        def left() -> dict[Claim, CursorPosition]:
            gone.update(buffer.stream for buffer in places if buffer not in self._buffers)
            return {buffer.claim: place for buffer, place in places.items() if buffer in self._buffers}

        await self._committer.commit(left)
        return gone

    async def last(self, buffers: list[PartitionBuffer]) -> None:
        """Commit for partitions that are given up; what was committed ahead in vain is the next owner's.

        Where the application commits itself, what it has asked for before is stored on return.
        """
        if self._settings.commit == "manual":
            await self._committer.commit(dict)
            return
        if self._settings.commit == "before":
            for buffer in buffers:
                self.go_back(buffer)
        await self._processed(buffers)

    async def ahead(self, delivery: Delivery) -> bool:
        """Commit the delivery before it is handed out, if the options ask for that; return whether it may be.

        If it may not, or the wait is cancelled, it is back in its buffer.
        """
        if self._settings.commit != "before":
            return True
        buffer, may_be = delivery.buffer, False
        place = CursorPosition(delivery.chunk.end, buffer.incarnation)
        try:
            await self._committer.commit(lambda: {buffer.claim: place})
            may_be = not delivery.is_taken_back
        except Fenced:
            await asyncio.sleep(_REFUSED_S)
        finally:
            if not may_be:
                self._buffers.finish(delivery)
        return may_be

    async def _processed(self, buffers: Iterable[PartitionBuffer]) -> None:
        try:
            await self._committer.commit(lambda: _places(buffers, lambda buffer: buffer.processed))
        except JetstreamError as error:
            if failure_effect(error) is not CommitFailureEffect.DROP:
                raise
            _log.info("commit refused group=%s error=%r", self._settings.group, error)


def _taken_away(streams: Iterable[str]) -> MemberFenced:
    return MemberFenced(f"taken away before it was committed: {', '.join(sorted(streams))}")


def _position(buffer: PartitionBuffer) -> Offset | None:
    return buffer.position


def _places(
    buffers: Iterable[PartitionBuffer], offset_of: Callable[[PartitionBuffer], Offset | None]
) -> dict[Claim, CursorPosition]:
    return {
        buffer.claim: CursorPosition(offset, buffer.incarnation)
        for buffer in buffers
        if (offset := offset_of(buffer)) is not None and buffer.has_begun.is_set()
    }
