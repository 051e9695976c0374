"""SIGKILL, SIGTERM and SIGSTOP of nodes under load, real processes: nothing acked is lost or stored twice."""

from pathlib import Path

import pytest

from tests.support.node_torture import Torture
from tests.support.sockets import run


@pytest.mark.slow("tests/chaos/test_chaos.py")
@pytest.mark.parametrize(("size", "seed"), [(3, 1), (5, 2)])
def test_a_few_faults_lose_and_double_nothing(size: int, seed: int, tmp_path: Path) -> None:
    assert run(Torture(tmp_path, size, seed).run(faults=4)) > 0


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(10, 30))
@pytest.mark.parametrize("size", [3, 5])
def test_many_faults_lose_and_double_nothing(size: int, seed: int, tmp_path: Path) -> None:
    assert run(Torture(tmp_path, size, seed).run(faults=20)) > 0
