import asyncio

from jetstream.cli.serve.running import Interruptible


def test_an_interruption_ends_the_block_that_waits_and_goes_on_behind_it() -> None:
    async def scenario() -> None:
        start = Interruptible()
        asyncio.get_running_loop().call_soon(start.interrupt)
        async with asyncio.timeout(10), start.interruptible():
            await asyncio.Event().wait()

    asyncio.run(scenario())


def test_an_interruption_before_the_block_ends_it_at_its_first_wait() -> None:
    async def scenario() -> None:
        start = Interruptible()
        start.interrupt()
        async with asyncio.timeout(10), start.interruptible():
            await asyncio.Event().wait()

    asyncio.run(scenario())
