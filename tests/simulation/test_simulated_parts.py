"""The parts that no product code is in do what their worlds are built on."""

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from envelope.types import Term
from metadata.raft.events import Persist
from metadata.raft.state import HardState
from tests.simulation import mutation
from tests.simulation.__main__ import MUTANTS
from tests.simulation.clock import DriftingClock
from tests.simulation.mutant_runs import directed
from tests.simulation.mutation import Mutant
from tests.simulation.network import Network, Weather
from tests.simulation.raft.swarm import draw
from tests.simulation.raft.writer import DiskWriter, Writes
from tests.simulation.timeline import Timeline


def _run(timeline: Timeline, until: int = 10**12) -> None:
    while timeline.take_next(until):
        pass


def test_steps_come_in_the_order_of_their_times_and_then_of_their_planning() -> None:
    timeline, taken = Timeline(), list[str]()
    timeline.at(5, taken.append, "later")
    timeline.at(3, taken.append, "first")
    timeline.at(3, taken.append, "second")
    assert timeline.take_next(4)
    assert timeline.take_next(4)
    assert not timeline.take_next(4)
    assert (taken, timeline.now) == (["first", "second"], 4)


@pytest.mark.parametrize("drift_ppm", [-50_000, 0, 1_000, 50_000])
def test_a_clock_says_when_it_will_show_a_time_and_never_too_early(drift_ppm: int) -> None:
    clock = DriftingClock(start=777, drift_ppm=drift_ppm)
    clock.jump(1_000, by=123_456)
    for local in range(200_000, 200_100):
        moment = clock.virtual(local)
        assert clock.local(moment - 1) < local <= clock.local(moment)


def _network(weather: Weather) -> tuple[Timeline, Network[int], list[int]]:
    timeline, received = Timeline(), list[int]()
    network: Network[int] = Network(timeline, Random(1), weather)
    network.connect("b", received.append)
    network.connect("a", received.append)
    return timeline, network, received


def test_a_link_in_order_keeps_the_order_and_one_that_is_not_mixes_it() -> None:
    for in_order in (True, False):
        timeline, network, received = _network(Weather(delay_mean=1_000, in_order=in_order))
        for number in range(50):
            network.send(("a", "b"), number)
        _run(timeline)
        assert sorted(received) == list(range(50))
        assert (received == sorted(received)) is in_order


def test_a_partition_in_one_direction_leaves_the_other_and_ends_with_its_last_cause() -> None:
    timeline, network, received = _network(Weather(delay_mean=0))
    network.block(("a", "b"))
    network.block(("a", "b"))
    network.send(("b", "a"), 1)
    network.send(("a", "b"), 2)
    network.unblock(("a", "b"))
    network.send(("a", "b"), 3)
    network.unblock(("a", "b"))
    network.send(("a", "b"), 4)
    _run(timeline)
    assert received == [1, 4]


def test_a_clogged_link_delivers_later_and_a_broken_connection_never() -> None:
    timeline, network, received = _network(Weather(delay_mean=0))
    network.clog(("a", "b"))
    network.send(("a", "b"), 1)
    _run(timeline, until=10)
    assert received == []
    network.unclog(("a", "b"))
    _run(timeline, until=20)
    network.send(("a", "b"), 2)
    network.break_off("b", "a")
    _run(timeline, until=30)
    assert received == [1]


def test_a_crash_keeps_a_prefix_of_the_writes_under_way_and_reports_none() -> None:
    kept = set()
    for seed in range(40):
        timeline, durable, reported = Timeline(), list[Persist](), list[Writes]()
        rng = Random(seed)
        writer = DiskWriter(
            timeline=timeline,
            rng=rng,
            swarm=draw(rng),
            write=durable.append,
            report=reported.append,
            fail=lambda kind: None,
        )
        writes = [Persist(number, HardState(Term(number), None)) for number in range(1, 4)]
        for persist in writes:
            writer.put(persist)
        writer.crash()
        _run(timeline)
        assert durable == writes[: len(durable)]
        assert reported == []
        kept.add(len(durable))
    assert kept == {0, 1, 2, 3}


def test_a_mutant_whose_snippet_is_gone_or_not_unique_is_an_error() -> None:
    for snippet, times in (("no such code", "0"), ("return", r"[0-9]+")):
        mutant = Mutant("odd", "metadata.raft.configuration", snippet, "pass")
        with pytest.raises(LookupError, match=f"odd: its snippet is {times} times"):
            mutant.source()


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_every_mutant_has_its_place_in_the_product(mutant: Mutant) -> None:
    assert mutant.source() != mutant.path.read_text()


def test_every_mutant_uses_names_that_its_module_knows(tmp_path: Path) -> None:
    """A mutant that fails with its first step would be found by any seed."""
    for name, mutant in MUTANTS.items():
        (tmp_path / f"{name}.py").write_text(mutant.source())
    linter = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", str(tmp_path)]
    found = subprocess.run(linter, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout


@pytest.mark.parametrize("mutant", directed(MUTANTS).values(), ids=directed(MUTANTS))
def test_the_directed_test_of_every_mutant_is_there(mutant: Mutant) -> None:
    file, _, test = str(mutant.scenario).partition("::")
    assert f"def {test.partition('[')[0]}(" in Path(file).read_text()


def test_a_mutant_of_a_module_that_is_imported_already_is_an_error() -> None:
    with pytest.raises(AssertionError, match="imported before"):
        mutation.install(Mutant("late", "metadata.raft.events", "class Tick", "class Tock"))
