"""A stream that records a service's requests without getting between the service and its callers.

With ``ack: none`` a stream answers only messages that ask for it (header ``Jetstream-Ack``), so the reply
subject stays the application's. Only NATS and JSON here, none of our code.

    jetstream up                                   # in another terminal
    python examples/existing_service.py [nats://127.0.0.1:4222]
"""

import asyncio
import json
import sys

import nats
from nats.aio.msg import Msg


async def greet(request: Msg) -> None:
    """The service as it was before there was a stream."""
    await request.respond(b"hello, " + request.data)


async def main(url: str) -> None:
    """Run the example against the NATS server at ``url``."""
    async with await nats.connect(url) as nc:
        await nc.subscribe("greet.*", cb=greet)
        config = {"name": "audit", "subject": "greet.>", "ack": "none"}
        await nc.request("jetstream.api.stream.create", json.dumps(config).encode(), timeout=5)

        # The caller hears from the service, and from nobody else.
        for name in ("ada", "grace", "barbara"):
            answer = await nc.request("greet.english", name.encode(), timeout=5)
            print(answer.data.decode())

        # A message that asks for an ack gets one: here is how to wait until all before it are stored.
        inbox = nc.new_inbox()
        answers = await nc.subscribe(inbox)
        await nc.publish("greet.english.log", b"end of test", reply=inbox, headers={"Jetstream-Ack": "all"})
        ack = json.loads((await answers.next_msg(timeout=5)).data)
        print(f"the stream {ack['stream']} holds {ack['seq']} messages")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "nats://127.0.0.1:4222"))
