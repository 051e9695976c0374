"""What the console concludes from what a node says: its modules' functions, called in the browser."""

from pathlib import Path
from typing import Any

from playwright.async_api import Page

from tests.support.browser import console
from tests.support.console_scene import console_scene
from tests.support.nodes import run

METRICS = """\
# HELP jetstream_stream_corrupt_offsets Offsets
jetstream_stream_corrupt_offsets{stream="bad"} 2.0
jetstream_stream_corrupt_offsets{stream="good"} 0.0
jetstream_stream_possible_gaps_total{stream="bad"} 1.0
jetstream_stream_time_ahead_seconds{stream="early"} 3600.0
jetstream_blank_replicas 1.0
jetstream_disk_free_bytes 1000.0
jetstream_metadata_voters 3.0
jetstream_metadata_voters_heard 2.0
jetstream_stream_high_watermark{stream="bad"} %d
"""


async def called(page: Page, module: str, expression: str, argument: object) -> list[Any]:
    """The value of an expression with a module's exports as ``m`` and the argument as ``a``."""
    program = f"async (a) => {{ const m = await import('/console/{module}'); {expression} }}"
    found: list[Any] = await page.evaluate(program, argument)
    return found


def test_everything_wrong_has_its_section_and_the_worst_comes_first(tmp_path: Path) -> None:
    health = {
        "problems": [
            "stream full: disk_full: no room",
            "stream odd: storage_error: input/output error",
            "the ingest connection to NATS is down",
            "no voter of the metadata log answers: a",
        ],
        "problems_total": 4,
    }
    rows = [
        {"name": "bad", "leader": "a", "replicas": ["a"], "isr": ["a"]},
        {"name": "full", "leader": None, "replicas": ["a"], "isr": []},
        {"name": "lone", "leader": None, "replicas": ["a"], "isr": []},
        {"name": "slow", "leader": "a", "replicas": ["a", "b"], "isr": ["a"]},
    ]

    async def scenario() -> None:
        async with (
            console_scene(tmp_path) as scene,
            console(scene.browser, scene.address) as (page, watched),
        ):
            numbers = "const numbers = (await import('/console/history.js')).parsed(a[1]);"
            judge = f"{numbers} return m.problems(a[0], numbers, a[2]);"
            found = await called(page, "problems.js", judge, [health, METRICS % 5, rows])
            bad = [(row["stream"], row["section"]) for row in found if row["isBad"]]
            assert bad == [
                ("full", "RB-04"),
                ("odd", "RB-01"),
                (None, "RB-06"),
                (None, "RB-21"),
                ("bad", "RB-05"),
                (None, "RB-13"),
                ("early", "RB-15"),
                (None, "RB-04"),
                (None, "RB-21"),
                ("lone", "RB-01"),
                ("slow", "RB-22"),
            ]
            assert [(row["stream"], row["section"]) for row in found[len(bad) :]] == [("bad", "RB-06")]
            watched.assert_nothing()

    run(scenario())


def test_a_history_is_of_the_last_hour_and_a_restart_is_no_fall(tmp_path: Path) -> None:
    readings = [(0, 0), (10, 50), (20, 100), (30, 20), (3_610, 30)]
    texts = [(at * 1000, METRICS % offset) for at, offset in readings]

    async def scenario() -> None:
        async with (
            console_scene(tmp_path) as scene,
            console(scene.browser, scene.address) as (page, watched),
        ):
            add = "const h = new m.History(); for (const [at, text] of a) h.add(text, at);"
            metric = '"jetstream_stream_high_watermark", "bad"'
            rates = await called(page, "history.js", f"{add} return h.rates({metric});", texts[:4])
            assert rates == [[10_000, 5], [20_000, 5]]
            levels = await called(page, "history.js", f"{add} return h.levels({metric});", texts)
            assert [at for at, _ in levels] == [10_000, 20_000, 30_000, 3_610_000]
            watched.assert_nothing()

    run(scenario())
