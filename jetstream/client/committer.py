"""Stores the cursors of a member, one commit after the other."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from consumer_groups.assignment.partitions import Claim
from consumer_groups.coordinator.events import CommitRequested, MemberRefused
from consumer_groups.cursors import Place
from consumer_groups.member.commits import Commit, Commits
from envelope.errors import ConnectionLost, JetstreamError
from envelope.group_errors import IllegalGeneration, InstanceFenced, MemberFenced, PartitionNotOwned
from jetstream.client.group_member import GroupMember
from jetstream.client.group_wire import commit_request, refusal_of
from jetstream.protocol.requests import Request

Places = Callable[[], Mapping[Claim, Place]]
"""Where the cursors are to be, when it is their turn."""


@dataclass(frozen=True, slots=True)
class _Wish:
    places: Places
    done: asyncio.Future[None]


class Committer:
    """Takes wishes, and stores what is due for them.

    Invariant:
        C25: one commit is under way at a time.
    """

    def __init__(self, group: str, member: GroupMember) -> None:
        self.commits = Commits()
        self._group = group
        self._member = member
        self._wishes: asyncio.Queue[_Wish] = asyncio.Queue()
        self._current: _Wish | None = None
        self._is_over = False

    async def commit(self, places: Places) -> None:
        """Return when the cursors are durable where ``places`` says, behind all that was wished before.

        Raises:
            Fenced: something of it is not this member's any more; nothing of that is stored.
            ConnectionLost: the consumer was closed meanwhile, outcome unknown.
            JetstreamError: the coordinator refuses it.
        """
        if self._is_over:
            raise _left()
        wish = _Wish(places, asyncio.get_running_loop().create_future())
        self._wishes.put_nowait(wish)
        await wish.done

    async def run(self) -> None:
        """Store, until cancelled; what is wished for then, or later, is of unknown outcome."""
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

    async def _store(self, commit: Commit) -> None:
        asked = self._member.commit(tuple(claim.partition for claim, _ in commit.places))
        if asked is None:
            raise MemberFenced(f"{self._member} has nothing to commit for")
        try:
            await self._member.ask(partial(_numbered, self._group, asked, commit))
        except (PartitionNotOwned, IllegalGeneration):
            if len(commit.places) == 1:
                raise
            await self._store_singly(commit)
        except (MemberFenced, InstanceFenced) as error:
            self._member.give(MemberRefused(asked.connection, asked.member_id, refusal_of(error)))
            raise
        else:
            self.commits.has_stored(commit)

    async def _store_singly(self, commit: Commit) -> None:
        """Store what can be, where something of a commit is not this member's any more."""
        refused: JetstreamError | None = None
        for each in commit.places:
            try:
                await self._store(Commit((each,), commit.goes_back))
            except (PartitionNotOwned, IllegalGeneration) as error:
                refused = error
        if refused is not None:
            raise refused


def _numbered(group: str, asked: CommitRequested, commit: Commit, number: int) -> Request:
    return commit_request(group, asked, commit, number)


def _left() -> ConnectionLost:
    return ConnectionLost("the consumer was closed: nobody knows whether that is committed")
