"""Work beside a block: how its end and that of the block are told."""

import asyncio

import pytest

from jetstream.client.nodes.background import beside
from tests.support.nodes import run


async def failing(failed: "asyncio.Future[None]") -> None:
    await failed


def test_the_failure_of_the_work_ends_the_block_and_is_raised_as_it_is() -> None:
    async def scenario() -> None:
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        failed.set_exception(KeyError("of the work"))
        with pytest.raises(KeyError, match="of the work"):
            async with beside(failing(failed)):
                await asyncio.Event().wait()

    run(scenario())


def test_a_caller_that_is_cancelled_does_not_go_on_because_the_work_fails_of_it() -> None:
    async def scenario() -> None:
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        has_gone_on = False

        async def caller() -> None:
            nonlocal has_gone_on
            try:
                async with beside(failing(failed)):
                    try:
                        await asyncio.Event().wait()
                    finally:
                        failed.set_exception(KeyError("of the end of the block"))
                        await asyncio.sleep(0)
            except KeyError:
                has_gone_on = True

        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(caller())
            await asyncio.sleep(0)
            task.cancel()
        assert task.cancelled()
        assert not has_gone_on

    run(scenario())
