"""Whether a run of readers stands, and what becomes of it in a table."""

from dataclasses import replace

import pytest

from benchmarks.meter import Reading
from benchmarks.readers import ReadCase, ReadRun, problem_of, read_row

CASE = ReadCase("ours", "1 KiB, 1 reader", ("batches",), {"node": 1}, size_bytes=1024)
COLD = replace(CASE, cold=True)
READING = Reading(amount=100, seconds=1.0, cpu_seconds=0.5, passes=3)
PASS = replace(READING, passes=1)


@pytest.mark.parametrize(
    ("case", "reading", "cached"),
    [(CASE, READING, None), (CASE, READING, 1.0), (COLD, PASS, 0.0), (COLD, replace(PASS, seconds=0.1), 0.0)],
)
def test_a_run_that_read_what_it_should_stands(
    case: ReadCase, reading: Reading, cached: float | None
) -> None:
    assert problem_of(case, [reading], cached, seconds=1.0) is None


@pytest.mark.parametrize(
    ("case", "reading", "cached", "reason"),
    [
        (CASE, replace(READING, problem="offset 7 instead of 6"), None, "offset 7 instead of 6"),
        (CASE, replace(READING, amount=0), None, "a reader received nothing"),
        (CASE, replace(READING, seconds=0.4), None, "a reader received something in 0.4 of 1.0 s only"),
        (CASE, READING, 0.5, "only 50% of the files were cached"),
        (COLD, PASS, 0.2, "20% of the files were cached before a cold pass"),
        (COLD, replace(PASS, passes=0), 0.0, "a cold pass was not finished"),
    ],
)
def test_a_run_that_read_less_or_something_else_does_not(
    case: ReadCase, reading: Reading, cached: float | None, reason: str
) -> None:
    assert problem_of(case, [READING if not case.cold else PASS, reading], cached, seconds=1.0) == reason


def test_a_row_has_the_medians_and_all_problems() -> None:
    runs = [
        ReadRun(
            rate=rate,
            readings=(READING,),
            cpu_ns={"node": cost},
            reader_cpu_cores=0.5,
            other_cpu_cores=0.1,
            cached_share=1.0,
            problem=problem,
        )
        for rate, cost, problem in ((1024.0, 30.0, None), (4096.0, 10.0, "why"), (2048.0, 20.0, None))
    ]

    row = read_row(CASE, runs)

    assert (row.rate, row.rate_min, row.rate_max) == (2048.0, 1024.0, 4096.0)
    assert row.details["values MiB/s"] == 2.0
    assert row.details["node CPU ns/record"] == 20.0
    assert row.details["cached before, %"] == 100.0
    assert row.problems == ["why"]
    assert row.runs[1]["readings"][0]["amount"] == 100
