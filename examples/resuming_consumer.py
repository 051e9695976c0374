"""A consumer that stops in the middle and goes on there when it starts again.

It keeps its cursor in the cluster, with NATS and JSON alone: it asks where it was, and publishes where it
is; only reading the records uses the client library.

    jetstream up                                   # in another terminal
    python examples/resuming_consumer.py [nats://127.0.0.1:4222]
"""

import asyncio
import json
import sys

import nats
from nats.aio.client import Client

import jetstream


async def consume(nc: Client, url: str, work: int) -> None:
    """Start, take ``work`` parcels, and stop as if the process had ended."""
    asked = json.dumps({"consumer": "loader", "stream": "parcels"}).encode()
    cursor = json.loads((await nc.request("jetstream.api.cursor.get", asked, timeout=5)).data)
    print("starting at", cursor["offset"])
    taken: list[str] = []
    async with jetstream.connect(url) as js:
        reader = js.read("parcels", start=cursor["offset"] or 0)
        async for record in reader:
            taken.append((record.value or b"").decode())
            if len(taken) == work:
                break
        done = b"%d" % (reader.next_offset or 0)
    print("took", ", ".join(taken))
    # After the work: what is not committed is read again, what is committed never.
    ack = json.loads((await nc.request("jetstream.api.cursors.plain.loader.parcels", done, timeout=5)).data)
    print("committed", int(done), "in", ack["stream"])


async def main(url: str) -> None:
    """Run the example against the NATS server at ``url``."""
    async with await nats.connect(url) as nc:
        config = json.dumps({"name": "parcels", "subject": "parcels.>"}).encode()
        await nc.request("jetstream.api.stream.create", config, timeout=5)
        for number in range(5):
            await nc.request("parcels.new", b"parcel %d" % number, timeout=5)
        for work in (2, 2, 1):
            await consume(nc, url, work)

        refused = await nc.request("jetstream.api.cursors.plain.loader.parcels", b"-1", timeout=5)
        print("refused:", json.loads(refused.data)["error"]["err_code"])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "nats://127.0.0.1:4222"))
