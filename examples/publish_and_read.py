"""Quick start with the client library: create a stream, publish, read back, follow.

jetstream up                                   # in another terminal
python examples/publish_and_read.py [nats://127.0.0.1:4222]
"""

import asyncio
import sys

import jetstream


async def main(url: str) -> None:
    """Run the example against the NATS server at ``url``."""
    async with jetstream.connect(url) as js:
        await js.streams.create("orders", "orders.>")

        # One message: the ack says that it is on disk, and where.
        ack = await js.publish("orders.eu", b'{"id": 1}', key="1", message_id="order-1")
        print(f"stored in {ack.stream} at offset {ack.offset}")

        # The same message id again, as a retry would: not stored twice.
        ack = await js.publish("orders.eu", b'{"id": 1}', key="1", message_id="order-1")
        print(f"retried: offset {ack.offset}, duplicate {ack.duplicate}")

        # Many messages: up to 1,000 acks outstanding; the end of the block awaits them all.
        async with js.publisher(window=1000) as publisher:
            for number in range(2, 10_001):
                _ = await publisher.publish("orders.us", b'{"id": %d}' % number, key=str(number))

        # Records, one by one, from any place.
        async for record in js.read("orders", start=9_998):
            print(f"{record.offset} {record.subject} {record.key!r} {record.value!r}")

        # Arrow batches: the way to read fast.
        rows = 0
        async for batch in js.read_batches("orders"):
            rows += batch.num_rows
        print(f"{rows} records read as Arrow batches")

        # Follow: go on where we stopped and wait for what comes.
        async with asyncio.TaskGroup() as tasks, js.read("orders", start=10_000, follow=True) as records:
            tasks.create_task(js.publish("orders.eu", b'{"id": 10001}'))
            print(f"followed to offset {(await anext(records)).offset}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "nats://127.0.0.1:4222"))
