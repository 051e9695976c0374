"""What a commit says of partitions that were taken away before its turn came."""

import asyncio
from typing import cast

import pytest

from envelope.group_errors import MemberFenced
from envelope.types import Offset
from jetstream.client.consume.consumer_commits import Committer, ConsumerCommits
from jetstream.client.consume.membership import GroupMembership
from jetstream.client.consume.options import consume_settings
from jetstream.client.consume.partition_buffers import PartitionBuffer, PartitionBuffers
from tests.support.group_membership import claim


async def fulfilled(committer: Committer) -> None:
    """Let the committer run until it rests: nothing is due, so nobody is asked."""
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(committer.run())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        running.cancel()


def test_offsets_of_a_partition_that_is_gone_by_their_turn_are_not_said_to_be_stored() -> None:
    async def test() -> None:
        buffers = PartitionBuffers()
        committer = Committer("g", cast("GroupMembership", None))  # asked only for what is due
        commits = ConsumerCommits(consume_settings("orders", "g", {}), buffers, committer)
        buffer: PartitionBuffer = buffers.open(claim(0, 1), "orders/0")
        buffer.has_read_to(Offset(0))
        commits.begin(buffer, None)
        async with asyncio.TaskGroup() as tasks:
            asked = tasks.create_task(refused(commits))
            await asyncio.sleep(0)
            buffers.close(buffer)
            commits.forget([buffer])
            await fulfilled(committer)
        assert asked.result() == "taken away before it was committed: orders/0"

    asyncio.run(test())


async def refused(commits: ConsumerCommits) -> str:
    with pytest.raises(MemberFenced) as error:
        await commits.at({"orders/0": 42})
    return error.value.description
