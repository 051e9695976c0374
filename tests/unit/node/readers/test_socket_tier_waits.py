"""Requests that wait for the object store are answered once, whatever comes together."""

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jetstream.node.readers.tier_waits import TierWaits
from jetstream.tier.tiered_log import SegmentAway


@dataclass
class Waiting:
    """One request that waits for one transfer."""

    came: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    answers: list[str] = field(default_factory=list)
    pending: SimpleNamespace = field(default_factory=SimpleNamespace)

    async def transfer(self) -> None:
        await self.came

    def begin(self, transfer: "asyncio.Task[None]") -> TierWaits:
        waits = TierWaits(
            lambda _: self.answers.append("again"), lambda *_: self.answers.append("over"), lambda _: None
        )
        self.pending = SimpleNamespace(
            connection=SimpleNamespace(closed=False), withdraw=None, is_cancelled=False
        )
        stream = SimpleNamespace(tiered=SimpleNamespace(bring_in=lambda _: transfer))
        waits.begin(cast("Any", self.pending), cast("Any", stream), SegmentAway(None))
        assert len(waits) == 1
        return waits


@pytest.mark.parametrize("comes", [True, False])
def test_a_request_whose_time_is_over_as_its_segment_comes_is_answered_once(
    monkeypatch: pytest.MonkeyPatch, *, comes: bool
) -> None:
    monkeypatch.setattr("jetstream.node.readers.tier_waits.TIER_SECONDS", 0.0)

    async def scenario() -> None:
        async with asyncio.TaskGroup() as tasks:
            waiting = Waiting()
            transfer = tasks.create_task(waiting.transfer())
            await asyncio.sleep(0)  # it waits
            waits = waiting.begin(transfer)
            if comes:
                waiting.came.set_result(None)  # in the turn of the loop in which the time is over
            for _ in range(5):
                await asyncio.sleep(0)
            assert waiting.answers == ["again" if comes else "over"]
            assert len(waits) == 0
            if not comes:
                waiting.came.set_result(None)

    asyncio.run(scenario())


@pytest.mark.parametrize("comes", ["soon", "in the same turn", "never"])
def test_a_request_that_is_cancelled_waits_no_more_and_is_not_looked_at_again(comes: str) -> None:
    async def scenario() -> None:
        async with asyncio.TaskGroup() as tasks:
            waiting = Waiting()
            transfer = tasks.create_task(waiting.transfer())
            await asyncio.sleep(0)  # it waits
            waits = waiting.begin(transfer)
            if comes != "never":
                waiting.came.set_result(None)
            if comes == "in the same turn":
                await asyncio.sleep(0)  # the transfer ends, and what waits for it is about to be called
                assert transfer.done()
            waiting.pending.is_cancelled = True
            waiting.pending.withdraw()
            for _ in range(5):
                await asyncio.sleep(0)
            assert waiting.answers == []
            assert len(waits) == 0
            if comes == "never":
                waiting.came.set_result(None)

    asyncio.run(scenario())
