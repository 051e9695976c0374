import json
import re
from array import array
from typing import Any

import pytest

from jetstream.cli.bench.report import BenchReport, latencies_ms


def a_report(messages: int = 4000) -> BenchReport:
    samples = array("d", (0.001 * number for number in range(1, messages + 1)))
    return BenchReport(
        bench="publish",
        stream="orders",
        start_offset=10 if messages else None,
        end_offset=10 + messages if messages else None,
        messages=messages,
        value_bytes=messages * 250,
        seconds=2.0 if messages else 0.0,
        cpu_seconds=0.1,
        latency_seconds={"ack": samples, "delivery": samples[: messages // 2]},
    )


def test_a_percentile_is_the_sample_below_which_so_many_lie() -> None:
    thousand = [number / 1000 for number in range(1000, 0, -1)]
    assert latencies_ms(thousand) == pytest.approx({"p50": 500, "p99": 990, "p99_9": 999, "max": 1000})
    assert latencies_ms([0.25]) == {"p50": 250, "p99": 250, "p99_9": 250, "max": 250}


def test_the_numbers_for_machines_follow_from_what_was_measured() -> None:
    figures: Any = json.loads(json.dumps(a_report().for_machines()))
    assert figures["messages_per_second"] == 2000
    assert figures["megabytes_per_second"] == 0.5
    assert figures["cpu_us_per_message"] == pytest.approx(25)
    assert figures["latency_ms"]["ack"]["samples"] == 4000
    assert figures["latency_ms"]["delivery"]["samples"] == 2000
    assert figures["latency_ms"]["ack"]["max"] == pytest.approx(4000)


def test_the_table_shows_the_same_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    report = a_report()
    report.show()
    shown = capsys.readouterr().out
    figures: dict[str, Any] = report.for_machines()
    for name, value in figures.items():
        if isinstance(value, int | float):
            [cell] = re.findall(rf"^{name.replace('_', ' ')}\s+│ (\S+)", shown, re.MULTILINE)
            assert float(cell.replace(",", "")) == pytest.approx(value, abs=0.005)
    for name, latency in figures["latency_ms"].items():
        [row] = re.findall(rf"^{name} .*$", shown, re.MULTILINE)
        cells = [float(cell.replace(",", "")) for cell in re.findall(r"[\d,.]+", row)]
        assert cells == pytest.approx(list(latency.values()), abs=0.0005)


def test_a_measurement_of_nothing_has_no_times(capsys: pytest.CaptureFixture[str]) -> None:
    report = a_report(messages=0)
    figures = report.for_machines()
    assert figures["messages_per_second"] is None
    assert figures["cpu_us_per_message"] is None
    assert figures["latency_ms"] == {"ack": None, "delivery": None}
    report.show()
    assert re.search(r"^messages per second\s+│ -", capsys.readouterr().out, re.MULTILINE)
