"""The official NATS client's ``js.publish()``, unchanged, into a Jetstream stream.

The NATS server needs no JetStream of its own: the acks come from our node. Nothing here imports our code.

    jetstream up                                   # in another terminal
    python examples/plain_nats_js_publish.py [nats://127.0.0.1:4222]
"""

import asyncio
import json
import sys

import nats
from nats.js.errors import BadRequestError


async def main(url: str) -> None:
    """Run the example against the NATS server at ``url``."""
    async with await nats.connect(url) as nc:
        # The request API is plain NATS request/reply with JSON.
        config = {"name": "invoices", "subject": "invoices.*"}
        await nc.request("jetstream.api.stream.create", json.dumps(config).encode(), timeout=5)

        js = nc.jetstream()
        ack = await js.publish("invoices.paid", b"no. 1", headers={"Nats-Msg-Id": "invoice-1"})
        print(f"stored in {ack.stream} as sequence {ack.seq}")

        # A retry with the same message id is not a second record.
        ack = await js.publish("invoices.paid", b"no. 1", headers={"Nats-Msg-Id": "invoice-1"})
        print(f"retried: sequence {ack.seq}, duplicate {ack.duplicate}")

        # Optimistic concurrency: only if the stream's last sequence is still the expected one.
        try:
            await js.publish("invoices.paid", b"no. 2", headers={"Nats-Expected-Last-Sequence": "7"})
        except BadRequestError as error:
            print(f"refused: {error.description} (err_code {error.err_code})")

        # Many in flight, every ack awaited.
        futures = [await js.publish_async("invoices.sent", b"no. %d" % number) for number in range(2, 102)]
        acks = await asyncio.gather(*futures)
        print(f"{len(acks)} more, sequences {acks[0].seq} to {acks[-1].seq}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "nats://127.0.0.1:4222"))
