"""Turns of followers that are not in sync, on a real loop."""

import asyncio
from functools import partial
from itertools import pairwise

import pytest

from jetstream.node.replicas.catch_up import CatchUp
from jetstream.replica.throttle import Throttle

RATE = 100_000
ANSWER = 2000


def test_without_a_throttle_everybody_is_served_at_once() -> None:
    async def test() -> None:
        served: list[str] = []
        catch_up = CatchUp()
        for follower in "abc":
            catch_up.serve(follower, partial(served.append, follower))
            catch_up.spend(1 << 40)
        assert served == ["a", "b", "c"]

    asyncio.run(test())


def test_followers_take_turns_and_each_waits_for_the_answer_before() -> None:
    async def test() -> None:
        loop, all_served = asyncio.get_running_loop(), asyncio.Event()
        catch_up, served = CatchUp(Throttle(RATE)), list[tuple[str, float]]()

        def serve(follower: str) -> None:
            served.append((follower, loop.time()))
            catch_up.spend(ANSWER)
            if len(served) < 6:
                catch_up.serve(follower, lambda: serve(follower))  # it asks for more at once
            else:
                all_served.set()

        for follower in "ab":
            catch_up.serve(follower, partial(serve, follower))
        await all_served.wait()
        assert [follower for follower, _ in served] == ["a", "a", "b", "a", "b", "a"]
        assert all(later - earlier >= ANSWER / RATE * 0.9 for (_, earlier), (_, later) in pairwise(served))

    asyncio.run(asyncio.wait_for(test(), 10))


@pytest.mark.parametrize("asks", [2, 5])
def test_of_one_follower_only_the_newest_question_is_answered(asks: int) -> None:
    async def test() -> None:
        answered: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        catch_up = CatchUp(Throttle(RATE))
        catch_up.serve("other", lambda: catch_up.spend(ANSWER))
        for number in range(asks):
            catch_up.serve("a", partial(answered.set_result, number))
        assert await asyncio.wait_for(answered, 10) == asks - 1

    asyncio.run(test())
