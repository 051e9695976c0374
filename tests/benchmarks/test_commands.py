"""The command line at its smallest, so that no benchmark rots unseen; no number is judged here."""

from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.report import Report

TINY = ["--quick", "--seconds", "0.1"]


def test_one_load_on_two_systems_is_measured_kept_and_printed_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "results" / "one.json"
    words = ["one", "jetstream", "bare", *TINY, "--window", "10", "--streams", "2", "--data", str(tmp_path)]

    assert main([*words, "--json", str(saved)]) == 0

    printed = capsys.readouterr().out
    report = Report.model_validate_json(saved.read_text())
    assert [row.system for row in report.rows] == ["JetStream R1, default", "bare request-reply"]
    assert all(row.runs[0]["result"]["acked"] > 0 and not row.problems for row in report.rows)
    assert report.machine["filesystem"]["type"]
    assert any("a quick look" in warning for warning in report.warnings)
    assert [path.name for path in tmp_path.iterdir()] == ["results"]
    assert main(["table", str(saved)]) == 0
    assert capsys.readouterr().out == printed


def test_the_raw_disk_is_measured_for_every_group_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["group_commit", "--quick", "--seconds", "0.01", "--data", str(tmp_path)]) == 0

    assert "| write + fdatasync | 1000 x 128 B |" in capsys.readouterr().out


@pytest.mark.deep
@pytest.mark.parametrize(
    "name", ["read", "read_delay", "long_poll", "catch_up", "groups", "budget", "tickets"]
)
def test_a_longer_benchmark_accounts_for_everything_and_leaves_nothing(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "results" / "report.json"
    words = [name, "--quick", "--seconds", "2", "--data", str(tmp_path), "--json", str(saved)]

    # 3: a bar was missed, which is nothing to be judged on such a run.
    assert main(words) in (0, 3)

    report = Report.model_validate_json(saved.read_text())
    assert report.rows
    assert not report.problems
    assert all(row.rate > 0 for row in report.rows)
    assert [path.name for path in tmp_path.iterdir()] == ["results"]
    assert f"### {name}" in capsys.readouterr().out


def test_a_disk_that_is_not_there_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["group_commit", "--quick", "--data", str(tmp_path / "nowhere")])

    assert ended.value.code == 2
    assert "nowhere is no directory" in capsys.readouterr().err


def test_an_unknown_benchmark_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["speed"])

    assert ended.value.code == 2
    assert "publish" in capsys.readouterr().err


def test_our_node_is_measured_with_every_message_accounted_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "ours.json"
    words = ["one", "ours", *TINY, "--window", "50", "--streams", "2", "--data", str(tmp_path)]

    assert main([*words, "--json", str(saved)]) == 0

    row = Report.model_validate_json(saved.read_text()).rows[0]
    assert row.runs[0]["result"]["acked"] > 0
    assert {"node CPU us/msg", "nats-server CPU us/msg", "messages a batch"} <= set(row.details)
    assert "ours, sync always" in capsys.readouterr().out
