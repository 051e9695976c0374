"""Voters change under load, with a kill at every step: nothing acked is lost or stored twice."""

from pathlib import Path

import pytest

from tests.chaos.growth import growth
from tests.support.nodes import run

_CHANGE_SECONDS_MAX = 20.0
"""Of a change in which a node was dead; five seconds on a machine that does nothing else."""


async def check(rounds: int, directory: Path, seed: int) -> None:
    done = await growth(rounds, directory, seed, print)
    assert [len(one.steps) for one in done] == [5] * rounds
    assert all(one.acked > 0 for one in done)
    assert max(step.change_s for one in done for step in one.steps) < _CHANGE_SECONDS_MAX


@pytest.mark.slow("tests/integration/test_growing_clusters.py")
def test_two_rounds_of_one_to_five_voters_and_back_lose_and_double_nothing(tmp_path: Path) -> None:
    run(check(2, tmp_path, seed=1))


@pytest.mark.deep
def test_fifty_rounds_of_one_to_five_voters_and_back_lose_and_double_nothing(tmp_path: Path) -> None:
    run(check(50, tmp_path, seed=100), limit_s=3000)
