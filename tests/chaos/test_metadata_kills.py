"""SIGKILL, SIGSTOP and clogged connections for a metadata group of real processes lose and double nothing."""

from pathlib import Path

import pytest

from tests.support.metadata_torture import torture
from tests.support.sockets import run


@pytest.mark.parametrize(
    ("size", "proxied", "faults"),
    [(3, False, 4), pytest.param(5, True, 8, marks=pytest.mark.slow("tests/chaos/test_metadata_kills.py"))],
)
def test_a_few_faults_lose_and_double_nothing(size: int, proxied: bool, faults: int, tmp_path: Path) -> None:
    assert run(torture(size, tmp_path, seed=size, faults=faults, proxied=proxied)) > 0


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(10, 20))
@pytest.mark.parametrize(("size", "proxied"), [(3, False), (3, True), (5, True)])
def test_many_faults_lose_and_double_nothing(size: int, proxied: bool, seed: int, tmp_path: Path) -> None:
    assert run(torture(size, tmp_path, seed, faults=40, proxied=proxied)) > 0
