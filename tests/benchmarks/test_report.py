"""Bars, rows and tables of benchmark reports."""

import re
from dataclasses import replace

import pytest

from benchmarks.loadgen import LoadResult, Percentiles
from benchmarks.measurement import Measurement, ProcessCost
from benchmarks.report import Bar, Report, Row, as_markdown
from benchmarks.soak import fitted_growth
from benchmarks.systems import Holdings

NOTHING = Percentiles(count=0, mean=0, min=0, p50=0, p90=0, p99=0, p999=0, max=0)


def measurement(
    holdings: Holdings | None, *, acked: int = 6, sequence_sum: int = 9, errors: int = 0, unanswered: int = 0
) -> Measurement:
    result = LoadResult(
        seconds=2.0,
        cpu_seconds=0.5,
        measured=4,
        published=acked + errors + unanswered,
        acked=acked,
        errors=errors,
        no_responders=0,
        duplicates=0,
        stray=0,
        unanswered=unanswered,
        sequence_sum=sequence_sum,
        first_error="full" if errors else "",
        latency=NOTHING,
        fdatasync=NOTHING,
    )
    cost = {"node": ProcessCost(cpu_seconds=0.00001, written_bytes=0, resident_bytes=0)}
    return Measurement(
        system="ours", point="128 B", result=result, costs=cost, other_cpu_cores=0.0, holdings=holdings
    )


@pytest.mark.parametrize(
    ("bar", "verdict"),
    [
        (Bar(requirement="a ratio", value=0.8, bar=0.8), "pass"),
        (Bar(requirement="a ratio", value=0.79, bar=0.8), "MISS"),
        (Bar(requirement="a cost", value=2.5, bar=2.5, at_most=True), "pass"),
        (Bar(requirement="a cost", value=2.6, bar=2.5, at_most=True), "MISS"),
        (Bar(requirement="a number", value=1.0), "stated"),
    ],
)
def test_a_bar_says_what_it_is_worth(bar: Bar, verdict: str) -> None:
    assert bar.verdict == verdict


def test_a_run_whose_messages_are_all_accounted_for_stands() -> None:
    # Three records in each of two streams: sequences 1 + 2 + 3, twice.
    assert measurement(Holdings((3, 3)), sequence_sum=12).problem is None
    assert measurement(None).problem is None


def test_a_run_on_a_stream_that_held_records_counts_only_its_own() -> None:
    # Sequences 5, 6 … 10 of a stream of four.
    run = measurement(Holdings((10,), batches=5), sequence_sum=45)

    assert replace(run, before=Holdings((4,), batches=2)).problem is None
    assert replace(run, before=Holdings((4,), batches=2)).batch_messages == 2.0
    assert replace(run, before=Holdings((3,))).problem == "6 acked, 7 stored"
    wrong = replace(run, before=Holdings((4,)), result=replace(run.result, sequence_sum=44))
    assert wrong.problem == "the acked sequences are not 1…n of each stream"


def test_a_run_of_batches_is_counted_in_records() -> None:
    # Six acks of two records each: the sequences 2, 4 … 12.
    run = measurement(Holdings((12,)), sequence_sum=42)
    batches = replace(run, result=replace(run.result, records=2))

    assert batches.problem is None
    assert replace(batches, holdings=Holdings((11,))).problem == "12 acked, 11 stored"
    wrong = replace(batches, result=replace(batches.result, sequence_sum=41))
    assert wrong.problem == "the acked sequences are not 1…n of each stream"


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (measurement(Holdings((5,))), "6 acked, 5 stored"),
        (measurement(Holdings((3, 3)), sequence_sum=13), "not 1…n"),
        (measurement(Holdings((6,)), errors=2), "2 refused.*full"),
        (measurement(Holdings((6,)), unanswered=1), "1 unanswered"),
    ],
)
def test_a_run_that_lost_or_invented_something_does_not_stand(run: Measurement, reason: str) -> None:
    assert run.problem is not None
    assert re.search(reason, run.problem)


def test_cost_and_group_size_are_per_acked_message() -> None:
    run = measurement(Holdings((6,), batches=2))

    assert run.result.rate == 2.0
    assert run.cpu_us("node") == pytest.approx(2.5)
    assert run.batch_messages == 3.0


def report(*bars: Bar, problems: list[str]) -> Report:
    row = Row(
        system="ours",
        point="128 B",
        rate=94_000.0,
        rate_min=90_000.0,
        rate_max=99_000.0,
        p50_us=812.0,
        p99_us=2_000.0,
        details={"node CPU us/msg": 1.7},
        problems=problems,
    )
    return Report(
        benchmark="publish",
        code={"commit": "0123456789abcdef", "date": "2026-01-01", "changed": False},
        machine={
            "cpu": "a processor",
            "cores": 2,
            "kernel": "6",
            "filesystem": {"type": "ext4"},
            "nats_server": "v2",
            "python": "3.11",
            "python_loop_ns": 250,
        },
        parameters={"seconds": 10.0, "resident_mib": [1, 2, 3]},
        rows=[row],
        bars=list(bars),
    )


def test_a_report_survives_its_json_and_renders_the_same() -> None:
    first = report(Bar(requirement="ratio", value=1.2, bar=0.8), problems=[])
    second = Report.model_validate_json(first.model_dump_json())

    assert second == first
    text = as_markdown(second)
    assert "| ours | 128 B | 94,000 | 90,000 to 99,000 | 812 | 2,000 | 1.70 |" in text
    assert "| ratio | 1.20 | ≥ 0.80 | pass |" in text
    assert "Python 3.11 (250 ns a round of its loop)." in text
    assert "resident_mib" not in text


def test_a_latency_that_was_not_taken_is_left_out() -> None:
    timed = report(problems=[])
    untimed = timed.model_copy(
        update={"rows": [row.model_copy(update={"p50_us": 0.0, "p99_us": 0.0}) for row in timed.rows]}
    )

    assert "| 90,000 to 99,000 |  |  | 1.70 |" in as_markdown(untimed)


def test_a_missed_goal_is_shown_but_not_required() -> None:
    goal = Bar(requirement="goal", value=1.0, bar=1.5, goal=True)
    must = Bar(requirement="must", value=1.0, bar=1.5)

    assert report(goal, must, problems=[]).missed == [must]
    assert "| goal | 1.00 | ≥ 1.50 (goal) | MISS |" in as_markdown(report(goal, problems=[]))


def test_a_problem_is_printed_with_the_numbers_it_spoils() -> None:
    spoilt = report(problems=["6 acked, 5 stored"])

    assert spoilt.problems == ["ours, 128 B: 6 acked, 5 stored"]
    assert "Problem: ours, 128 B: 6 acked, 5 stored" in as_markdown(spoilt)


def test_growth_is_what_a_fitted_line_rises() -> None:
    assert fitted_growth([0, 1, 2, 3], [10, 12, 14, 16]) == pytest.approx(6)
    assert fitted_growth([0, 1, 2, 3], [10, 11, 10, 11]) == pytest.approx(0.6)
    assert fitted_growth([0], [10]) == 0
