"""A request of the API that is cancelled at any turn of the loop ends so."""

import asyncio
from pathlib import Path

import jetstream
from tests.support.nodes import nats_and_node, run

TURNS = 400


def test_a_request_that_is_cancelled_at_any_turn_ends_cancelled_or_was_over_before(tmp_path: Path) -> None:
    """Also in the turn in which its answer comes, where `wait_for` of Python 3.11 would go on with that."""

    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            ended = {True: 0, False: 0}
            async with asyncio.TaskGroup() as tasks:
                for turns in range(TURNS):
                    asking = tasks.create_task(js.requests.cluster_info())
                    for _turn in range(turns):
                        await asyncio.sleep(0)
                    is_cancelled = asking.cancel()
                    await asyncio.wait([asking])
                    assert asking.cancelled() == is_cancelled
                    ended[is_cancelled] += 1
            assert all(ended.values()), "some are over before that, some are not"

    run(scenario())
