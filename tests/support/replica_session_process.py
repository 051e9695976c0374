"""A node with replication sessions as a process of its own, to be killed and stopped.

    python -m tests.support.replica_session_process <port of node a> <leader timeout in ms>

It is node b, prints its port, and answers every fetch with a body that is the fetch's log end in text.
"""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial

from envelope.types import Incarnation, NodeId, StreamName
from jetstream.node.peers.fetch_sessions import PeerSessionSettings
from jetstream.replica.wire import FetchMessage
from metadata.node.peers.dialling import Address
from tests.support.forked_process import ForkedProcess
from tests.support.replica_sessions import LOOPBACK, MS, A, B, SessionNode, batches, with_body


def body_for(log_end: int) -> bytes:
    """What a fetch from ``log_end`` is answered with."""
    return b"%d" % log_end


def _answer(
    node: SessionNode, peer: NodeId, name: StreamName, incarnation: Incarnation, fetch: FetchMessage
) -> None:
    body = body_for(fetch.log_end)
    answer = replace(with_body(batches(fetch.log_end), body), leader_epoch=fetch.leader_epoch)
    node.sessions.answer(peer, name, incarnation, answer, body)


async def _run(port_of_a: int, leader_timeout_ms: int) -> None:
    settings = PeerSessionSettings(leader_timeout_ms * MS, leader_timeout_ms * MS // 6)
    node = SessionNode(B, settings)
    node.story.on_fetch = partial(_answer, node)
    node.start({A: Address(LOOPBACK, port_of_a)})
    sys.stdout.write(f"{node.address.port}\n")
    sys.stdout.flush()
    await node.task


@contextlib.asynccontextmanager
async def process_beside(node: SessionNode, leader_timeout_ms: int = 60_000) -> AsyncIterator[ForkedProcess]:
    """Start ``node``, which is a, and beside it such a process; both are over at the end."""
    arguments = (str(node.address.port), str(leader_timeout_ms))
    process = ForkedProcess(__name__, arguments, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None, "it is a pipe"
        with process.stdout:
            port = await asyncio.to_thread(process.stdout.readline)
        node.start({B: Address(LOOPBACK, int(port))})
        await node.story.until_told("connected", of=B)
        node.story.forget()
        yield process
    finally:
        process.kill()  # which the test may have done
        process.wait()
        await node.stop()


if __name__ == "__main__":
    asyncio.run(_run(int(sys.argv[1]), int(sys.argv[2])))
