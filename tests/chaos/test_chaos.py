"""Clusters of real processes under drawn faults: what clients were told is true, and all is whole again."""

import asyncio
import faulthandler
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest
import uvloop

from tests.chaos.chaos_run import ChaosRun, Options
from tests.chaos.faults import KINDS, LOSSES, drawn, ring_cuts

_BOUND_SECONDS: Final = 300.0
"""How long a run may take beside twice the time of its faults: all is read and judged afterwards."""
_HANGS_SECONDS: Final = 3_000.0


def struck(directory: Path, options: Options) -> Mapping[str, int]:
    """Run, and fail with all that is wrong and with what was done; return how often each fault has struck."""
    said: list[str] = []
    run = asyncio.wait_for(
        ChaosRun(options, directory, said.append).run(), 2 * options.seconds + _BOUND_SECONDS
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        verdict = runner.run(run)
    assert not verdict.problems, "\n".join([*said, *verdict.problems])
    assert verdict.counts["Acked"] > 100, verdict
    assert verdict.group["commits accepted"] > 50, verdict
    return verdict.faults


@pytest.mark.parametrize(
    ("nodes", "seed", "rounds"),
    [
        (3, 2701, 2),  # a stream's directory is gone, all in sync are killed; cut off, a clock, a member
        pytest.param(3, 13530, 6, marks=pytest.mark.slow("tests/chaos/test_chaos.py")),
        pytest.param(5, 5, 2, marks=pytest.mark.deep),
    ],
)
def test_a_few_rounds_of_faults_leave_nothing_wrong(
    nodes: int, seed: int, rounds: int, tmp_path: Path
) -> None:
    faults = struck(tmp_path, Options(nodes, seed, seconds=30.0, rounds=rounds, hold_seconds=1.0))
    assert sum(faults.values()) >= rounds


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(40, 46))
@pytest.mark.parametrize("nodes", [3, 5])
def test_a_minute_of_faults_leaves_nothing_wrong(nodes: int, seed: int, tmp_path: Path) -> None:
    faults = struck(tmp_path, Options(nodes, seed, seconds=60.0, rounds=20, hold_seconds=3.0))
    assert sum(faults.values()) >= 20


@pytest.mark.deep
def test_twenty_minutes_of_all_faults_leave_nothing_wrong(tmp_path: Path) -> None:
    faulthandler.dump_traceback_later(_HANGS_SECONDS, exit=True)  # other tests are given up earlier
    faults = struck(tmp_path, Options(3, seed=20, seconds=1_200.0))
    assert faults.keys() >= set(KINDS)


def test_a_seed_draws_the_same_faults_again() -> None:
    first, second = (
        [drawn(chance, KINDS, 5.0) for _ in range(200)] for chance in (random.Random(7), random.Random(7))
    )
    assert first == second
    assert {fault.kind for round_ in first for fault in round_.faults} == set(KINDS)


def test_a_round_loses_at_most_one_disk_and_that_first() -> None:
    chance = random.Random(8)
    rounds = [drawn(chance, KINDS, 5.0) for _ in range(2_000)]
    losses = [[fault.kind in LOSSES for fault in round_.faults] for round_ in rounds]
    assert all(not any(each[1:]) for each in losses)
    assert any(each[0] and len(each) > 1 for each in losses)


@pytest.mark.parametrize("size", [3, 5])
def test_on_a_ring_everybody_hears_a_majority_and_no_two_the_same(size: int) -> None:
    names = [str(number) for number in range(size)]
    cuts = ring_cuts(names)
    assert {(other, one) for one, other in cuts} == set(cuts)
    heard = {name: frozenset(other for other in names if (other, name) not in cuts) for name in names}
    assert all(len(others) > size // 2 for others in heard.values())
    assert len(set(heard.values())) == size
