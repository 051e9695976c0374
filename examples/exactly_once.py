"""Clerks that are killed in the midst of their work, and whose output has each input exactly once.

They read purchases as a consumer group and publish a receipt for each. What a clerk has published and not
committed when it dies is read again by another one, which publishes the same receipts under the same numbers,
and the stream of receipts stores none of them twice. The work has to be deterministic for that.

    jetstream up                                   # in another terminal
    python examples/exactly_once.py [nats://127.0.0.1:4222]
"""

import asyncio
import sys
from asyncio.subprocess import Process
from contextlib import AsyncExitStack

import jetstream

PURCHASES = 3_000
KILLS = 4


async def work(url: str) -> None:
    """Turn purchases into receipts until killed."""
    async with jetstream.connect(url) as js, AsyncExitStack() as sessions:
        receipts: dict[str, jetstream.SessionPublisher] = {}
        async with js.consume(
            "purchases", group="receipts", session_timeout_s=1.0, commit_records=100
        ) as purchases:
            async for partition, batch in purchases.batches():
                name = purchases.session_name(partition)
                if name not in receipts:
                    session = js.session(name, stream="receipts", derived=True)
                    receipts[name] = await sessions.enter_async_context(session)
                for purchase in batch.to_pylist():
                    receipt = b"receipt of " + purchase["value"]
                    _ = await receipts[name].publish("receipts.new", receipt, sequence=purchase["offset"] + 1)
                await receipts[name].flush()  # stored; what is committed next is behind that


async def started(url: str) -> Process:
    """Start a clerk as a process of its own."""
    return await asyncio.create_subprocess_exec(sys.executable, __file__, url, "work")


async def until_published(js: jetstream.JetstreamClient, count: int) -> None:
    """Wait until there are so many receipts."""
    while (await js.streams.info("receipts")).high_watermark < count:  # noqa: ASYNC110 - other processes
        await asyncio.sleep(0.02)


async def main(url: str) -> None:
    """Run the example against the NATS server at ``url``."""
    async with jetstream.connect(url) as js:
        await js.streams.create("purchases", "purchases.>", partitions=2, partition_by="subject")
        # Repeats are recognised by their session, long after their ids are forgotten.
        await js.streams.create("receipts", "receipts.>", dedupe_window="PT1S")
        purchases = [(f"purchases.{number % 7}", b"purchase %d" % number) for number in range(PURCHASES)]
        await js.publish_all(purchases)

        clerks = [await started(url), await started(url)]
        try:
            for kill in range(1, KILLS + 1):
                await until_published(js, kill * PURCHASES // (KILLS + 1))
                victim = clerks.pop(0)
                victim.kill()
                await victim.wait()
                clerks.append(await started(url))
            await until_published(js, PURCHASES)
            while (await js.groups.lag("receipts")).total:  # noqa: ASYNC110 - likewise
                await asyncio.sleep(0.1)
        finally:
            for clerk in clerks:
                clerk.kill()
                await clerk.wait()
        print(f"{KILLS} of the clerks were killed")

        found = [record.value async for record in js.read("receipts")]
        expected = {b"receipt of " + value for _, value in purchases}
        print(f"{len(found)} receipts for {PURCHASES} purchases")
        print("each purchase exactly once:", len(found) == len(set(found)) and set(found) == expected)


if __name__ == "__main__":
    where = sys.argv[1] if len(sys.argv) > 1 else "nats://127.0.0.1:4222"
    asyncio.run(work(where) if "work" in sys.argv[2:] else main(where))
