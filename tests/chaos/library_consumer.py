"""A consumer of the client library, which says what it gets and commits after every batch."""

import asyncio

from envelope.errors import ConnectionLost, Fenced
from jetstream import JetstreamClient
from jetstream.client.consume.consumer import Consumer
from tests.chaos.member_task import Journal, Task
from tests.support.group_history import AskedFor, Committed, Committing, Delivered, Granted, PutOut


class LibraryConsumer:
    """One consumer for the whole life of the process; its memberships are its own affair."""

    def __init__(self, task: Task, js: JetstreamClient) -> None:
        self.gate: asyncio.Queue[None] = asyncio.Queue()
        self._task = task
        self._journal = Journal(task)
        self._label = f"{task.name}/library"
        self._over = asyncio.Event()
        self._consumer: Consumer = js.consume(
            task.streams,
            group=task.group,
            commit="manual",
            session_timeout_s=task.session_ms / 1000,
            rebalance_timeout_s=task.rebalance_ms / 1000,
            on_assigned=self._assigned,
            on_revoked=self._revoked,
            on_lost=self._lost,
        )

    def stop(self) -> None:
        """Leave the group as soon as the application is between two batches."""
        self._over.set()
        self.gate.put_nowait(None)

    async def run(self) -> None:
        """Go on until it is over."""
        async with asyncio.TaskGroup() as tasks, self._consumer as consumer:
            tasks.create_task(self._close())
            async for stream, batch in consumer.batches():
                offsets = [int(offset) for offset in batch.column(0).to_numpy()]
                assert offsets == list(range(offsets[0], offsets[0] + len(offsets)))
                values = [value or b"" for value in batch.column("value").to_pylist()]
                words = tuple(value.split(b" ", 1)[0].decode() for value in values)
                await self._deal_with(stream, offsets[0], words)

    async def _close(self) -> None:
        await self._over.wait()
        await self._consumer.close()

    async def _deal_with(self, stream: str, first: int, values: tuple[str, ...]) -> None:
        journal, group = self._journal, self._task.group
        since = self._since(stream, is_in_hand=True)
        journal.say(
            Delivered(
                at=journal.now(),
                group=group,
                stream=stream,
                member=self._label,
                since=since,
                first=first,
                values=values,
            )
        )
        if self._task.gated:
            await self.gate.get()
        name, end = journal.attempt(), first + len(values)
        journal.say(
            Committing(
                at=journal.now(),
                group=group,
                stream=stream,
                member=self._label,
                since=since,
                commit=name,
                offset=end,
            )
        )
        try:
            await self._consumer.commit()
        except (ConnectionLost, Fenced) as error:
            # It may have been sent more than once: an earlier attempt may be stored. A consumer that failed
            # says why when it is asked for the next batch.
            journal.say(
                Committed(
                    at=journal.now(),
                    group=group,
                    stream=stream,
                    commit=name,
                    outcome="unknown",
                    code=error.err_code,
                )
            )
        else:
            journal.say(Committed(journal.now(), group, stream, name, "accepted"))

    def _since(self, stream: str, *, is_in_hand: bool = False) -> int:
        """Since which generation the partition is owned, which the library tells nobody."""
        delivery = self._consumer.delivery
        if is_in_hand and delivery is not None:
            return delivery.buffer.claim.generation
        [lane] = [lane for lane in self._consumer._buffers if lane.stream == stream and lane.is_open]
        return lane.claim.generation

    def _assigned(self, streams: list[str]) -> None:
        at = self._journal.now()
        for stream in streams:
            since = self._since(stream)
            self._journal.say(Granted(at, self._task.group, stream, self._label, since))

    def _revoked(self, streams: list[str]) -> None:
        at = self._journal.now()
        for stream in streams:
            self._journal.say(AskedFor(at, self._task.group, stream, self._label, 0))

    def _lost(self, streams: list[str]) -> None:
        del streams
        said = PutOut(self._journal.now(), self._task.group, self._label, "member_fenced")
        self._journal.say(said)
