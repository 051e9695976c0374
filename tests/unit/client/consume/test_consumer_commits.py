"""What a commit says of partitions that were taken away before its turn came."""

import asyncio
from typing import cast

import pytest

from consumer_groups.cursors import CursorPosition
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


def opened() -> tuple[PartitionBuffers, PartitionBuffer, Committer, ConsumerCommits]:
    """A consumer of one partition that has no cursor yet."""
    buffers = PartitionBuffers()
    committer = Committer("g", cast("GroupMembership", None))  # asked only for what is due
    commits = ConsumerCommits(consume_settings("orders", "g", {"commit": "manual"}), buffers, committer)
    buffer = buffers.open(claim(0, 1), "orders/0")
    buffer.has_read_to(Offset(0))
    buffer.has_begun.set()
    commits.begin(buffer, None)
    return buffers, buffer, committer, commits


@pytest.mark.parametrize("offsets", [{"orders/0": 42}, None], ids=["named", "here"])
def test_what_is_gone_by_its_turn_is_not_said_to_be_stored(offsets: dict[str, int] | None) -> None:
    async def test() -> None:
        buffers, buffer, committer, commits = opened()
        async with asyncio.TaskGroup() as tasks:
            asked = tasks.create_task(refused(commits, offsets))
            await asyncio.sleep(0)
            buffers.close(buffer)
            commits.forget([buffer])
            await fulfilled(committer)
        assert asked.result() == "taken away before it was committed: orders/0"

    asyncio.run(test())


def test_what_needs_no_commit_is_not_said_to_be_taken_away() -> None:
    async def test() -> None:
        buffers, buffer, committer, commits = opened()
        commits.begin(buffer, CursorPosition(Offset(0), None))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(commits.here())
            await asyncio.sleep(0)
            buffers.close(buffer)
            commits.forget([buffer])
            await fulfilled(committer)

    asyncio.run(test())


async def refused(commits: ConsumerCommits, offsets: dict[str, int] | None) -> str:
    with pytest.raises(MemberFenced) as error:
        await (commits.here() if offsets is None else commits.at(offsets))
    return error.value.description
