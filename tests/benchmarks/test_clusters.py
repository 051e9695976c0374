"""Clusters of three as systems under test: what they hold, who leads, and what a strike costs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.cluster_idle import loopback
from benchmarks.clusters import free_ports
from benchmarks.loadgen import Load
from benchmarks.measurement import Case, measure
from benchmarks.processes import ProcessError
from benchmarks.replicated import PEER_DEFAULT, ClusterLaboratory, Replicated
from benchmarks.report import Report
from benchmarks.server_process import ServerProcess

TINY = Load(2, 5, 64, seconds=0.2, warmup_seconds=0.05)


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicated]:
    with ClusterLaboratory(tmp_path_factory.mktemp("systems")) as laboratory:
        system = laboratory.system(PEER_DEFAULT)
        assert isinstance(system, Replicated)
        yield system


def test_every_message_is_kept_by_three_servers_and_accounted_for(peer: Replicated) -> None:
    measurement = measure(Case(peer, "tiny", TINY))

    assert measurement.problem is None
    assert measurement.holdings is not None
    assert measurement.holdings.records == (measurement.result.acked,)
    assert measurement.groups == ("leader", "follower")
    assert len(measurement.costs) == 3
    followers = [cost for role, cost in measurement.costs.items() if role.startswith("follower")]
    assert measurement.resident_bytes("follower") == sum(cost.resident_bytes for cost in followers)


def test_the_publisher_is_connected_to_the_leader(peer: Replicated) -> None:
    with peer.streams(1):
        assert peer.address == peer.cluster.address(peer.leader)
        assert peer.processes["leader"] == peer.cluster.servers[peer.leader].pid


def test_what_nobody_was_told_of_is_counted_when_it_is_stored(peer: Replicated) -> None:
    load = Load(1, 1, 64, seconds=0.2, warmup_seconds=0.05, asks=False)

    measurement = measure(Case(peer, "unasked", load))

    assert measurement.problem is None
    assert measurement.result.sequence_sum == 0
    assert measurement.holdings is not None
    assert measurement.holdings.records == (measurement.result.published,)


def test_a_server_that_was_killed_starts_again_and_one_that_ended_by_itself_is_told(tmp_path: Path) -> None:
    server = ServerProcess("sleeper", ["sleep", "60"], tmp_path / "log").start()
    first = server.pid
    server.kill()
    with pytest.raises(ProcessError, match="sleeper does not run"):
        _ = server.pid
    assert server.start().pid != first
    server.pause()
    server.stop()

    short = ServerProcess("short", ["false"], tmp_path / "log").start()
    assert short._process is not None
    short._process.wait()
    with pytest.raises(ProcessError, match="short does not run"):
        _ = short.pid


def test_free_ports_are_all_different() -> None:
    assert len(set(free_ports(20))) == 20


def test_the_loopback_counters_are_those_of_the_loopback() -> None:
    text = " eth0: 1 2 0 0 0 0 0 0 3 4\n    lo: 500 7 0 0 0 0 0 0 500 7 0 0\n"
    assert loopback(text) == (500, 7)
    before = loopback()
    assert loopback() >= before > (0, 0)


@pytest.mark.deep
@pytest.mark.parametrize(
    "words",
    [["cluster"], ["cluster_connections"], ["cluster_acks"], ["cluster_idle"], ["failover", "--kills", "1"]],
    ids=lambda words: words[0],
)
def test_a_benchmark_of_clusters_accounts_for_everything_and_leaves_nothing(
    words: list[str], tmp_path: Path
) -> None:
    saved = tmp_path / "results" / "report.json"

    # 3: a bar was missed, which is nothing to be judged on such a run.
    assert main([*words, "--quick", "--data", str(tmp_path), "--json", str(saved)]) in (0, 3)

    report = Report.model_validate_json(saved.read_text())
    assert report.rows
    assert not report.problems
    assert [path.name for path in tmp_path.iterdir()] == ["results"]
