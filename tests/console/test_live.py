"""The console while things happen: a leader dies, thousands of streams, thousands of records a second."""

import asyncio
import json
import sys
from pathlib import Path
from time import perf_counter
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.async_api import Route

from tests.support.browser import browser, console
from tests.support.cluster_scene import three_nodes
from tests.support.console_scene import console_scene
from tests.support.nodes import run

STREAMS = 1_000
MANY_STREAMS = 10_000
RECORDS = 20_000


def test_a_page_stays_true_while_a_leader_is_killed(tmp_path: Path) -> None:
    async def scenario() -> None:
        with three_nodes(tmp_path) as scene:
            address = ("127.0.0.1", scene.cluster["a"].http_port)
            async with browser() as chromium, scene.client() as js:
                await scene.created(js.nats, "orders", ["b", "a", "c"])
                await js.publish("orders.x", b"before")
                async with console(chromium, address) as (page, watched):
                    row = page.get_by_role("row", name="orders")
                    await row.get_by_text("3 of 3").wait_for()
                    assert await row.get_by_role("cell").nth(6).inner_text() == "b"
                    scene.cluster["b"].kill()
                    await row.get_by_text("! behind").wait_for()
                    await row.get_by_text("2 of 3").wait_for()
                    assert await row.get_by_role("cell").nth(6).inner_text() in ("a", "c")
                    await page.keyboard.press("5")
                    await page.get_by_text("not in sync: b").wait_for()
                    await page.get_by_role("cell", name="RB-22").wait_for()
                    await page.keyboard.press("4")
                    await page.get_by_text("✗ dead").wait_for()
                    scene.cluster["b"].start()
                    await page.get_by_text("✗ dead").wait_for(state="detached")
                    await page.keyboard.press("1")
                    await row.get_by_text("✓ online").wait_for()
                    watched.assert_nothing()

    run(scenario())


def test_records_that_another_node_leads_are_a_link_away(tmp_path: Path) -> None:
    async def scenario() -> None:
        with three_nodes(tmp_path) as scene:
            address = ("127.0.0.1", scene.cluster["a"].http_port)
            async with browser() as chromium, scene.client() as js:
                await scene.created(js.nats, "orders", ["b"])
                await js.publish("orders.x", b"of b")
                asked = scene.cluster["b"].metric("jetstream_http_requests_total")
                async with console(chromium, address, "records/orders?from=0") as (page, watched):
                    await page.get_by_text("Node b leads orders").wait_for()
                    there = page.get_by_role("link", name="This view at b")
                    port = scene.cluster["b"].http_port
                    assert (
                        await there.get_attribute("href")
                        == f"http://127.0.0.1:{port}/#/records/orders?from=0"
                    )
                    watched.assert_nothing()
                    assert scene.cluster["b"].metric("jetstream_http_requests_total") == asked + 1
                    await there.click()
                    await page.get_by_role("cell", name="of b").wait_for()

    run(scenario())


def test_a_tail_goes_on_when_its_node_is_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        with three_nodes(tmp_path) as scene:
            address = ("127.0.0.1", scene.cluster["b"].http_port)
            async with browser() as chromium, scene.client() as js:
                await scene.created(js.nats, "orders", ["b"])
                await js.publish("orders.x", b"first")
                view = "records/orders?from=latest&follow=true"
                async with console(chromium, address, view) as (page, watched):
                    await page.get_by_text("Following").wait_for()
                    scene.cluster["b"].kill()
                    await page.get_by_text("the tail goes on when it does").wait_for()
                    await page.get_by_text("✗ no answer").wait_for()
                    scene.cluster["b"].start()
                    await scene.until(js.nats, "orders", lambda info: info["state"] == "online")
                    await js.publish("orders.x", b"second")
                    await page.get_by_role("cell", name="second").wait_for()
                    await page.get_by_text("1 records read").wait_for()
                    await page.get_by_text("✓ ready").wait_for()
                    watched.assert_nothing_is_run()

    run(scenario())


def test_a_thousand_streams_are_there_soon(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def scenario() -> None:
        async with console_scene(tmp_path) as scene:
            for first in range(0, STREAMS, 50):
                names = [f"stream{number:04d}" for number in range(first, first + 50)]
                await asyncio.gather(*(scene.js.streams.create(name, f"{name}.>") for name in names))
            await scene.js.publish("stream0777.x", b"v")
            async with console(scene.browser, scene.address) as (page, watched):
                await page.get_by_role("link", name="stream0003").wait_for()
                took_ms = await page.evaluate("performance.now()")
                await page.get_by_text(f"{STREAMS:,} of {STREAMS:,} streams").wait_for()
                await page.get_by_role("searchbox").fill("0777")
                assert (
                    await page.get_by_role("row", name="stream0777").get_by_role("cell").nth(3).inner_text()
                    == "1"
                )
                watched.assert_nothing()
            with capsys.disabled():
                said = f"{STREAMS} streams seen {took_ms:.0f} ms after the page was opened"
                sys.stdout.write(f"\nconsole: {said}\n")

    run(scenario())


def test_ten_thousand_streams_are_scrolled_and_searched_with_few_rows_in_the_page(tmp_path: Path) -> None:
    """The list is a made one: only what the page does with it is looked at."""

    async def scenario() -> None:
        async with (
            console_scene(tmp_path) as scene,
            console(scene.browser, scene.address, "cluster") as (page, watched),
        ):
            await page.route("**/v1/streams?*", listed)
            await page.keyboard.press("1")
            await page.get_by_text(f"{MANY_STREAMS:,} of {MANY_STREAMS:,} streams, 1 offline").wait_for()
            assert (await page.locator("tbody a").first.inner_text()) == "stream06000"
            seen: set[str] = set()
            height = "[...document.querySelectorAll('tbody tr:not(.space)')].map((row) => row.offsetHeight)"
            assert set(await page.evaluate(height)) == {32}, "as table.js counts"
            await page.get_by_role("region", name="Streams").focus()
            while len(seen) < 200:
                names = set(await page.locator("tbody a").all_inner_texts())
                assert len(names) < 100
                assert not seen or seen & names, "none is jumped over"
                seen |= names
                await page.keyboard.press("PageDown")
            await page.keyboard.press("End")
            await page.get_by_role("link", name="stream09999").wait_for()
            await page.get_by_role("searchbox").fill("stream0999")
            await page.get_by_text(f"10 of {MANY_STREAMS:,} streams").wait_for()
            watched.assert_nothing()

    run(scenario())


def test_a_large_list_is_asked_for_seldom(tmp_path: Path) -> None:
    """The pause grows with what was read: a megabyte costs a node 80 ms, and is asked for every 80 s."""

    async def scenario() -> None:
        async with (
            console_scene(tmp_path) as scene,
            console(scene.browser, scene.address, "cluster") as (page, watched),
        ):
            await page.route("**/v1/streams?*", listed)
            await page.clock.install()
            await page.reload()
            await page.get_by_text("✓ ready").wait_for()
            await page.keyboard.press("1")
            await page.get_by_text(f"{MANY_STREAMS:,} of {MANY_STREAMS:,} streams, 1 offline").wait_for()
            asked: list[str] = []
            page.on("request", lambda request: asked.append(urlsplit(request.url).path))
            for _ in range(5):
                async with page.expect_response("**/healthz"):
                    await page.clock.run_for(20_000)
            assert "/v1/streams" not in asked
            async with page.expect_request("**/v1/streams?*"):
                await page.clock.run_for(200_000)
            watched.assert_nothing()

    run(scenario())


async def listed(route: Route) -> None:
    """Answer for a node with many streams."""
    asked = parse_qs(urlsplit(route.request.url).query)
    offset, limit = int(asked["offset"][0]), int(asked["limit"][0])
    rows = [summary(number) for number in range(offset, min(offset + limit, MANY_STREAMS))]
    page = {"streams": rows, "total": MANY_STREAMS, "offset": offset}
    await route.fulfill(body=json.dumps(page), content_type="application/json")


def summary(number: int) -> dict[str, object]:
    """A row of the list; one of them has no leader."""
    name = f"stream{number:05d}"
    places = {"log_start_offset": 0, "log_end_offset": number, "high_watermark": number, "bytes": number}
    leader = None if number == 6000 else "a"
    held = {"replicas": ["a"], "isr": ["a"], "leader": leader, "leader_epoch": 1}
    return {"name": name, "subject": f"{name}.>", "ack": "all", **held, **places}


def test_a_fast_tail_counts_every_record_and_the_page_goes_on_drawing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> None:
        async with console_scene(tmp_path) as scene:
            await scene.js.streams.create("fast", "fast.>")
            view = "records/fast?from=latest&follow=true"
            async with console(scene.browser, scene.address, view) as (page, watched):
                await page.get_by_text("Following").wait_for()
                await page.evaluate("""() => {
                    window.frames_drawn = 0;
                    const draw = () => { window.frames_drawn += 1; requestAnimationFrame(draw); };
                    requestAnimationFrame(draw);
                }""")
                began = perf_counter()
                await scene.js.publish_all(("fast.x", b'{"id": %d}' % number) for number in range(RECORDS))
                await page.get_by_text(f"{RECORDS:,} records read").wait_for()
                took = perf_counter() - began
                frames = await page.evaluate("window.frames_drawn")
                await page.get_by_role("button", name=f"{RECORDS - 1:,}", exact=True).click()
                watched.assert_nothing()
            with capsys.disabled():
                said = f"{RECORDS / took:.0f} records/s followed, at {frames / took:.0f} frames/s"
                sys.stdout.write(f"\nconsole: {said}\n")

    run(scenario())


def test_a_page_out_of_sight_asks_nothing(tmp_path: Path) -> None:
    """The browser's clock is moved; whether the page can be seen is said to it, as nobody looks at a test."""

    async def scenario() -> None:
        async with (
            console_scene(tmp_path) as scene,
            console(scene.browser, scene.address, "health") as (page, watched),
        ):
            await page.clock.install()
            await page.reload()
            await page.get_by_text("✓ The node is ready.").wait_for()
            asked: list[str] = []
            page.on("request", lambda request: asked.append(urlsplit(request.url).path))
            async with page.expect_response("**/metrics"):
                await page.clock.run_for(60_000)
            assert {"/healthz", "/metrics", "/v1/streams"} <= set(asked)
            await page.evaluate("""() => {
                Object.defineProperty(document, "hidden", { configurable: true, get: () => true });
                document.dispatchEvent(new Event("visibilitychange"));
            }""")
            asked.clear()
            await page.clock.run_for(600_000)
            async with page.expect_response("**/livez"):
                await page.evaluate("fetch('/livez')")
            assert asked == ["/livez"], "which is the test's own"
            async with page.expect_response("**/v1/streams?*"):
                await page.evaluate("""() => {
                    delete document.hidden;
                    document.dispatchEvent(new Event("visibilitychange"));
                }""")
            watched.assert_nothing()

    run(scenario())
