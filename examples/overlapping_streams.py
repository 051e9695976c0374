"""Several streams on one subject: each stores its own copy, and the publisher chooses whose ack counts.

jetstream up                                   # in another terminal
python examples/overlapping_streams.py [nats://127.0.0.1:4222]
"""

import asyncio
import sys

import jetstream
from envelope.errors import WrongExpectedStream


async def main(url: str) -> None:
    """Run the example against the NATS server at ``url``."""
    async with jetstream.connect(url) as js:
        await js.streams.create("sales", "sales.>")
        await js.streams.create("sales-eu", "sales.eu.>")

        streams = await js.streams.lookup("sales.eu.berlin")
        print("sales.eu.berlin is stored by", [stream.name for stream in streams])

        # A plain publish is acked by each of them on the same reply subject: the first ack is taken.
        # Naming the stream makes that one answer; the other stores its copy and stays silent.
        ack = await js.publish("sales.eu.berlin", b"1 bicycle", stream="sales-eu")
        print(f"acked by {ack.stream} at offset {ack.offset}")

        # Or wait for all that matter.
        acks = await js.publish("sales.eu.paris", b"2 bicycles", streams=["sales", "sales-eu"])
        print("acked by", [(ack.stream, ack.offset) for ack in acks])

        # A stream outside the subject's streams cannot answer: refused, and stored nowhere.
        await js.streams.create("returns", "returns.>")
        try:
            await js.publish("sales.us.boston", b"3 bicycles", stream="returns")
        except WrongExpectedStream as error:
            print(f"refused: {error.err_code}")

        for name in ("sales", "sales-eu"):
            values = [record.value.decode() async for record in js.read(name) if record.value]
            print(f"{name}: {values}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "nats://127.0.0.1:4222"))
