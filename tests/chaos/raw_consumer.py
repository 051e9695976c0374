"""A consumer that keeps to what docs/internals/groups.md wants of a member, and does nothing else.

But for one thing: it sends requests that were answered once more, later, and in later memberships too.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Final, NamedTuple, TypeVar

from envelope.errors import (
    ConnectionLost,
    DeadlinePassed,
    Fenced,
    JetstreamError,
    UnavailableError,
    error_from_wire,
)
from jetstream import JetstreamClient
from jetstream.client.nodes.socket_access import SocketAccess
from jetstream.client.nodes.socket_link import SocketLink
from jetstream.protocol.group_requests import CommitCursors, FindCoordinator
from jetstream.protocol.group_responses import CoordinatorResponse, MemberAssignment
from jetstream.protocol.requests import Request
from jetstream.protocol.responses import Response
from tests.chaos.cluster import passes
from tests.chaos.member_task import Journal, Task
from tests.support.group_history import (
    AskedFor,
    Committed,
    Committing,
    CursorTold,
    Delivered,
    Granted,
    Outcome,
    PutOut,
)
from tests.support.pauses import pause
from tests.support.raw_member import RawMember

T = TypeVar("T")
R = TypeVar("R", bound=Response)

_ATTEMPT_SECONDS: Final = 2.0
_READ_BYTES: Final = 4096
"""At most in one delivery, or one batch."""
_KEPT_MAX: Final = 20
_AGAIN_SECONDS: Final = 0.3


class Claim(NamedTuple):
    """What is owned, and since which generation."""

    stream: str
    number: int
    since: int


class Batch(NamedTuple):
    """Records for the application; ``done`` once it has had them."""

    claim: Claim
    first: int
    values: tuple[str, ...]
    done: asyncio.Event


class StopReading(NamedTuple):
    """Claims that are to be given up."""

    claims: tuple[Claim, ...]


Item = Batch | StopReading | Fenced | None
"""What the application hears of next; None: it is to end."""


@dataclass
class ChattyMember(RawMember):
    """Says what it is granted and what it commits, and keeps what was answered, to be sent again."""

    journal: Journal = field(kw_only=True)
    heard: Callable[[], None] = field(kw_only=True)
    """Called with every assignment that is newer than the last one."""
    partitioned: set[str] = field(default_factory=set)
    kept: list[tuple[Request, Committing | None]] = field(default_factory=list)
    _asked: Committing | None = None

    @property
    def label(self) -> str:
        """This membership in the history."""
        return f"{self.journal.task.name}/{self.member[:8]}"

    def take(self, assignment: MemberAssignment) -> None:
        if assignment.member == self.member and assignment.generation < self.generation:
            return
        super().take(assignment)
        self.partitioned = {one.stream for one in assignment.streams if one.partitioned}
        self.heard()

    def claims(self) -> list[Claim]:
        """What it keeps."""
        return [Claim(*partition, since) for partition, since in self.keeps.items()]

    def asked_for(self) -> list[Claim]:
        """What it is to give up."""
        return [Claim(*partition, since) for partition, since in self.gives_up.items()]

    def stream_of(self, claim: Claim) -> str:
        """The stream that the partition is."""
        return f"{claim.stream}/{claim.number}" if claim.stream in self.partitioned else claim.stream

    async def ask(self, kind: type[R], request: Request) -> R:
        response = await super().ask(kind, request)
        self.kept.append((request, self._asked if isinstance(request, CommitCursors) else None))
        del self.kept[:-_KEPT_MAX]
        return response

    async def commit_claim(self, claim: Claim, offset: int, number: int) -> None:
        """Commit, and say how that ended; raises what it ended with."""
        journal = self.journal
        self._asked = Committing(
            at=journal.now(),
            group=self.group,
            stream=self.stream_of(claim),
            member=self.label,
            since=claim.since,
            commit=journal.attempt(),
            offset=offset,
        )
        await self._said(self._asked, self.commit(offset, claim.stream, claim.number, number=number))

    async def once_more(self, request: Request, asked: Committing | None) -> None:
        """Send what was answered; the answer changes nothing."""
        sent = request.model_copy(update={"id": self.link.next_id()})
        try:
            if asked is None:
                await self.link.ask(sent)
            else:
                journal = self.journal
                again = Committing(
                    **{**asdict(asked), "at": journal.now(), "commit": journal.attempt(), "again": True}
                )
                await self._said(again, self._superseded(sent))
        except JetstreamError:
            pass

    async def _superseded(self, request: Request) -> bool:
        response = (await self.link.ask(request)).response
        return bool(getattr(response, "superseded", False))

    async def _said(self, asked: Committing, superseded: Awaitable[bool]) -> None:
        self.journal.say(asked)
        outcome: Outcome = "unknown"
        code = ""
        try:
            outcome = "superseded" if await superseded else "accepted"
        except JetstreamError as error:
            outcome, code = _outcome(error), error.err_code
            raise
        finally:
            told = Committed(
                at=self.journal.now(),
                group=self.group,
                stream=asked.stream,
                commit=asked.commit,
                outcome=outcome,
                code=code,
            )
            self.journal.say(told)


def _outcome(error: JetstreamError) -> Outcome:
    is_unknown = type(error) is UnavailableError or isinstance(error, ConnectionLost | DeadlinePassed)
    return "unknown" if is_unknown else "refused"


class RawConsumer:
    """Runs one membership after the other."""

    def __init__(self, task: Task, js: JetstreamClient) -> None:
        self.task = task
        self.js = js
        self.chance = random.Random(f"{task.seed} {task.name}")
        self.journal = Journal(task)
        self.items: asyncio.Queue[Item] = asyncio.Queue()
        self.gate: asyncio.Queue[None] = asyncio.Queue()
        self.over = asyncio.Event()
        self.member: ChattyMember | None = None
        self._has_link = asyncio.Event()
        self._known: dict[Claim, asyncio.Task[None]] = {}
        """What is read, or was stopped, by claim."""
        self._asked_for: set[Claim] = set()
        self._tasks = asyncio.TaskGroup()

    def stop(self) -> None:
        """Leave the group as soon as the application is between two pieces of work."""
        self.over.set()
        self.items.put_nowait(None)
        self.gate.put_nowait(None)

    async def run(self) -> None:
        """Go on until it is over."""
        async with asyncio.TaskGroup() as tasks:
            keeper = tasks.create_task(self._keep_link())
            resender = tasks.create_task(self._resend())
            while not self.over.is_set():
                await self._membership()
            keeper.cancel()
            resender.cancel()

    # --- the coordinator --------------------------------------------------------------------------

    async def _keep_link(self) -> None:
        """Have a link to whoever coordinates the group."""
        while True:
            try:
                async with asyncio.timeout(_ATTEMPT_SECONDS):
                    link = await self._opened()
            except (JetstreamError, TimeoutError):
                await pause()
                continue
            if self.member is None:
                task = self.task
                self.member = ChattyMember(
                    link, task.group, task.streams, journal=self.journal, heard=self._heard
                )
                self.member.session_ms = task.session_ms
            self.member.link = link
            self._has_link.set()
            while not link.closed:
                await pause()
            self._has_link.clear()

    async def _opened(self) -> SocketLink:
        ports = list(self.task.ways)
        asked = await SocketLink.open(
            "127.0.0.1", self.chance.choice(ports), _ATTEMPT_SECONDS, SocketAccess()
        )
        try:
            found = (await asked.ask(FindCoordinator(id=asked.next_id(), group=self.task.group))).response
        finally:
            asked.close()
        assert isinstance(found, CoordinatorResponse)
        return await SocketLink.open(found.host, found.port, _ATTEMPT_SECONDS, SocketAccess())

    async def _asked(
        self, act: Callable[[ChattyMember], Awaitable[T]], seconds: float = _ATTEMPT_SECONDS
    ) -> T:
        """Ask until there is an answer; raises one that is final."""
        while True:
            await self._has_link.wait()
            member = self.member
            assert member is not None
            link = member.link
            try:
                async with asyncio.timeout(seconds):
                    return await act(member)
            except (UnavailableError, TimeoutError):
                link.close()
                if member.link is link:
                    self._has_link.clear()
                await pause()

    def _lose_link(self) -> None:
        """Look for the coordinator anew."""
        if self.member is not None:
            self.member.link.close()
            self._has_link.clear()

    async def _resend(self) -> None:
        """Send again, now and then, what was answered before."""
        while True:
            await passes(self.chance.uniform(0, _AGAIN_SECONDS), asyncio.Event())
            member = self.member
            if member is None or not member.kept or self.chance.random() >= self.task.again:
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(_ATTEMPT_SECONDS):
                    await member.once_more(*self.chance.choice(member.kept))

    # --- one membership ---------------------------------------------------------------------------

    async def _membership(self) -> None:
        await self._has_link.wait()
        member = self.member
        assert member is not None
        self._known, self._asked_for, self.items = {}, set(), asyncio.Queue()
        member.member, member.generation = "", 0
        number = member.joins + 1
        async with asyncio.TaskGroup() as self._tasks:
            try:
                await self._join_and_work(number)
            except Fenced as error:  # by the answer to a join that is repeated, too: its member is gone
                said = PutOut(self.journal.now(), self.task.group, member.label, error.err_code)
                self.journal.say(said)
            for reading in self._known.values():
                reading.cancel()

    async def _join_and_work(self, number: int) -> None:
        await self._asked(
            lambda member: member.join(number=number, rebalance_timeout_ms=self.task.rebalance_ms)
        )
        if self.over.is_set():
            self.items.put_nowait(None)
        beating = self._tasks.create_task(self._beat())
        try:
            await self._work()
        finally:
            beating.cancel()

    async def _beat(self) -> None:
        """Be alive, and hear what is new; who is put out hears that when the application asks."""
        wait_ms = self.task.session_ms // 4
        while True:
            response = await self._asked(
                lambda member: member.heartbeat(wait_ms), wait_ms / 1000 + _ATTEMPT_SECONDS
            )
            for refused in response.refused:
                error = error_from_wire(refused.error.err_code, refused.error.description, {})
                if isinstance(error, Fenced):
                    self.items.put_nowait(error)
                    return
                self._lose_link()

    def _heard(self) -> None:
        """Begin to read what is granted, stop what is asked for."""
        member = self.member
        assert member is not None
        kept, asked_for = member.claims(), member.asked_for()
        for claim in kept + asked_for:
            if claim not in self._known:
                self._say(Granted, claim)
                self._known[claim] = self._tasks.create_task(self._read(claim))
        for claim in asked_for:
            if claim not in self._asked_for:
                self._say(AskedFor, claim)
        self._asked_for.update(asked_for)
        self.items.put_nowait(StopReading(tuple(asked_for)))
        for claim in self._known.keys() - {*kept, *asked_for}:
            self._known.pop(claim).cancel()

    def _say(self, kind: type[Granted | AskedFor], claim: Claim) -> None:
        member = self.member
        assert member is not None
        stream = member.stream_of(claim)
        self.journal.say(kind(self.journal.now(), self.task.group, stream, member.label, claim.since))

    async def _read(self, claim: Claim) -> None:
        """Read on from the cursor, one batch after the other."""
        member = self.member
        assert member is not None
        stream = member.stream_of(claim)
        place = await self._asked(lambda member: self._cursor(member, claim))
        while True:
            reader = self.js.read_batches(
                stream, start=place, follow=True, retry_s=60.0, max_bytes=_READ_BYTES
            )
            try:
                async with reader:
                    async for batch in reader:
                        offsets = batch.column(0).to_pylist()
                        if not offsets:
                            continue
                        assert offsets == list(range(place, place + len(offsets)))
                        values = tuple(_word(value) for value in batch.column("value").to_pylist())
                        item = Batch(claim, place, values, asyncio.Event())
                        self.items.put_nowait(item)
                        await item.done.wait()
                        place += len(offsets)
            except JetstreamError as error:
                if not error.retriable:
                    raise
                await pause()

    async def _cursor(self, member: ChattyMember, claim: Claim) -> int:
        asked_at = self.journal.now()
        found = await member.cursors(claim.stream, claim.number + 1)
        offset = found.get(claim.number)
        at, stream = self.journal.now(), member.stream_of(claim)
        self.journal.say(
            CursorTold(
                asked_at=asked_at,
                at=at,
                group=self.task.group,
                stream=stream,
                member=member.label,
                offset=offset,
            )
        )
        return offset or 0

    # --- the application --------------------------------------------------------------------------

    async def _work(self) -> None:
        """Do one thing after the other: what is read, and what comes of it."""
        while True:
            match await self.items.get():
                case Batch() as batch:
                    await self._deal_with(batch)
                case StopReading(claims):
                    await self._give_up([claim for claim in claims if claim in self._known])
                case None:
                    await self._asked(lambda member: member.leave())
                    return
                case Fenced() as error:
                    raise error

    async def _deal_with(self, batch: Batch) -> None:
        member = self.member
        assert member is not None
        if batch.claim not in self._known or self._known[batch.claim].cancelling():
            return
        stream, since = member.stream_of(batch.claim), batch.claim.since
        self.journal.say(
            Delivered(
                at=self.journal.now(),
                group=self.task.group,
                stream=stream,
                member=member.label,
                since=since,
                first=batch.first,
                values=batch.values,
            )
        )
        if self.task.gated:
            await self.gate.get()
        number, offset = member.commits + 1, batch.first + len(batch.values)
        await self._asked(lambda member: member.commit_claim(batch.claim, offset, number))
        batch.done.set()

    async def _give_up(self, claims: list[Claim]) -> None:
        """All that was delivered is committed: say that these are free, until no assignment names them."""
        member = self.member
        assert member is not None
        for claim in claims:
            self._known[claim].cancel()
        while held := [claim for claim in claims if claim in self._known]:
            let_go = {(claim.stream, claim.number): claim.since for claim in held}
            await self._asked(partial(ChattyMember.release, claims=let_go))


def _word(value: bytes | None) -> str:
    return (value or b"").split(b" ", 1)[0].decode()
