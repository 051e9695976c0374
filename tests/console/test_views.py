"""Every view of the console of a real node, in a real Chromium."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pyarrow as pa
import pytest
from playwright.async_api import Page

from envelope.types import Offset
from jetstream.client.connection import JetstreamClient
from tests.support.browser import console
from tests.support.console_scene import HOSTILE, TXID, console_scene, fill, fill_hostile
from tests.support.go_programs import NotBuildable, nats_command
from tests.support.nodes import run


async def command_shown(page: Page) -> str:
    return await page.locator("#ways code").first.inner_text()


def test_the_list_shows_every_stream_and_leads_to_each(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with console_scene(tmp_path) as scene:
            await fill(scene)
            async with console(scene.browser, scene.address) as (page, watched):
                row = page.get_by_role("row", name="orders")
                await row.get_by_text("✓ online").wait_for()
                assert await page.get_by_role("row").count() == 1 + 5
                assert await command_shown(page) == "jetstream stream ls"
                await page.get_by_role("searchbox").fill("ORD")
                assert await page.get_by_role("row").count() == 1 + 1
                await row.get_by_role("link", name="orders", exact=True).click()
                await page.get_by_role("heading", name="orders").wait_for()
                await page.get_by_text("0 to 20", exact=True).wait_for()
                assert await command_shown(page) == "jetstream stream info orders"
                await page.goto(page.url.replace("/orders", "/payments"))
                await page.get_by_role("link", name="payments/3").wait_for()
                watched.assert_nothing()

    run(scenario())


def test_records_are_read_from_a_place_filtered_and_followed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with console_scene(tmp_path) as scene:
            await fill(scene)
            async with console(scene.browser, scene.address, "records/orders") as (page, watched):
                await page.get_by_text("20 records read").wait_for()
                await page.get_by_role("textbox", name="From", exact=True).fill("10")
                await page.get_by_role("textbox", name="Subject", exact=True).fill("orders.eu")
                await page.get_by_role("textbox", name="Limit", exact=True).fill("3")
                await page.get_by_role("button", name="Read").click()
                await page.get_by_text("3 records read").wait_for()
                wanted = "jetstream read orders --from 10 --subject orders.eu --limit 3"
                assert await command_shown(page) == wanted
                offsets = await page.locator("tbody button").all_inner_texts()
                assert offsets == ["11", "13", "15"]
                await page.get_by_role("button", name="Next").click()
                await page.get_by_text("2 records read").wait_for()
                assert await page.locator("tbody button").all_inner_texts() == ["17", "19"]
                await page.get_by_role("textbox", name="From", exact=True).fill("latest")
                await page.get_by_role("button", name="Tail").click()
                await page.get_by_text("Following: new records").wait_for()
                await scene.js.publish("orders.us", b"not wanted")
                await scene.js.publish("orders.eu", b'{"id": "new"}')
                await page.get_by_text("1 records read").wait_for()
                await page.get_by_role("button", name="21", exact=True).click()
                await page.get_by_role("region", name="Record 21").get_by_text('"id": "new"').wait_for()
                await page.get_by_role("button", name="Stop").click()
                await page.get_by_text("Stopped.").wait_for()
                await page.get_by_role("textbox", name="From", exact=True).fill("nonsense")
                await page.get_by_role("button", name="Read").click()
                await page.get_by_text("'nonsense'").wait_for()
                assert all("400" in error for error in watched.errors)
                watched.assert_nothing_is_run()

    run(scenario())


def test_big_records_are_read_part_by_part(tmp_path: Path) -> None:
    """Their answer is too long for the node to say in its head where it ends."""

    async def scenario() -> None:
        async with console_scene(tmp_path) as scene:
            await scene.js.streams.create("big", "big.>")
            await scene.js.publish_all(("big.x", b"%d" % number + b" " * 300_000) for number in range(5))
            view = "records/big?from=0&limit=2"
            async with console(scene.browser, scene.address, view) as (page, watched):
                for offsets in (["0", "1"], ["2", "3"], ["4"]):
                    await page.get_by_text(f"{len(offsets)} records read").wait_for()
                    await page.get_by_role("button", name=offsets[0], exact=True).wait_for()
                    assert await page.locator("tbody button").all_inner_texts() == offsets
                    if offsets != ["4"]:
                        await page.get_by_role("button", name="Next").click()
                assert await page.get_by_role("button", name="Next").is_disabled()
                watched.assert_nothing()

    run(scenario())


def test_what_is_downloaded_is_what_was_asked_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with console_scene(tmp_path) as scene:
            await fill(scene)
            view = "records/orders?" + urlencode({"from": "5", "to": "9"})
            async with console(scene.browser, scene.address, view) as (page, watched):
                await page.get_by_text("4 records read").wait_for()
                texts = {}
                for name in ("arrow", "csv", "ndjson"):
                    await page.get_by_label("Download as").select_option(name)
                    async with page.expect_download() as waiting:
                        await page.get_by_role("button", name="Download").click()
                    download = await waiting.value
                    texts[download.suggested_filename] = (await download.path()).read_bytes()
                assert pa.ipc.open_stream(texts["orders.arrows"]).read_all()["offset"].to_pylist() == [
                    5,
                    6,
                    7,
                    8,
                ]
                assert [json.loads(line)["offset"] for line in texts["orders.ndjson"].splitlines()] == [
                    5,
                    6,
                    7,
                    8,
                ]
                assert texts["orders.csv"].count(b"\n") == 1 + 4
                watched.assert_nothing()

    run(scenario())


def test_hostile_records_are_shown_as_they_are_and_run_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with console_scene(tmp_path) as scene:
            await fill_hostile(scene)
            async with console(scene.browser, scene.address, "records/hostile") as (page, watched):
                await page.get_by_text("6 records read").wait_for()
                panel = page.locator(".record")
                for offset in range(6):
                    await page.get_by_role("button", name=str(offset), exact=True).click()
                    await page.get_by_role("region", name=f"Record {offset}").wait_for()
                    for button in ("Hex", "Text", "JSON"):
                        await panel.get_by_role("button", name=button, exact=True).click()
                    if offset == 0:
                        await panel.get_by_role("button", name="Text", exact=True).click()
                        assert await panel.locator("pre").inner_text() == HOSTILE
                        assert await panel.get_by_text(HOSTILE, exact=True).count() == 4
                    elif offset == 1:
                        await panel.get_by_role("button", name="Hex", exact=True).click()
                        assert "ff fe 00 80" in await panel.locator("pre").inner_text()
                    elif offset == 2:
                        await panel.get_by_role("button", name="Text", exact=True).click()
                        await panel.get_by_role("button", name="Show all of").click()
                        assert (await panel.locator("pre").inner_text()).endswith(HOSTILE)
                    elif offset == 3:
                        assert await panel.locator("pre").inner_text() == "null: a tombstone"
                        await panel.get_by_role("definition").get_by_text(str(TXID), exact=True).wait_for()
                    elif offset == 4:
                        shown = await panel.locator("pre").inner_text()
                        assert '\n  "n": 12345678901234567890,\n  "n": 1.0,\n  "a": [],\n' in shown
                assert await page.locator("main img, main script").count() == 0
                watched.assert_nothing()

    run(scenario())


def test_a_record_is_published_again_by_what_was_copied(tmp_path: Path) -> None:
    try:
        nats_program = nats_command() / "nats"
    except NotBuildable as error:
        pytest.skip(f"no nats command: {error}")

    async def scenario() -> None:
        async with console_scene(tmp_path) as scene:
            await fill_hostile(scene)
            allowed = ["clipboard-read", "clipboard-write"]
            view = "records/hostile"
            async with console(scene.browser, scene.address, view, permissions=allowed) as (page, _):
                await page.get_by_text("6 records read").wait_for()
                programs, commands = [], []
                for offset in range(6):
                    await page.get_by_role("button", name=str(offset), exact=True).click()
                    await page.get_by_role("region", name=f"Record {offset}").wait_for()
                    programs.append(await copied(page, "Copy as Python"))
                    commands.append(await copied(page, "Copy as nats pub"))
            for program in programs:
                await published_again(scene.js, program)
            assert all(character.isprintable() for command in commands for character in command)
            for command in commands:
                await run_by_a_shell(command.replace("nats pub", f"{nats_program} pub"), scene.url)
            async with scene.js.read("hostile") as reader:
                records = [record async for record in reader]
            parts = [(r.subject, r.key, r.value, named(r.headers, "Kind"), r.txid) for r in records]
            assert parts[6:] == parts[:6] + parts[:6]

    run(scenario())


async def copied(page: Page, button: str) -> str:
    """What a button puts on the clipboard."""
    await page.get_by_role("button", name=button, exact=True).click()
    await page.get_by_role("button", name="Copied", exact=True).wait_for()
    text: str = await page.evaluate("navigator.clipboard.readText()")
    await page.get_by_role("button", name=button, exact=True).wait_for()
    return text


async def published_again(js: JetstreamClient, program: str) -> None:
    """Run a copied line."""
    scope: dict[str, Any] = {"js": js}
    exec(f"async def publish():\n    {program}", scope)
    await scope["publish"]()


async def run_by_a_shell(command: str, url: str) -> None:
    """Run a copied command, which may be longer than an argument."""
    shell = await asyncio.create_subprocess_exec(
        "bash", env={**os.environ, "NATS_URL": url}, stdin=asyncio.subprocess.PIPE
    )
    await shell.communicate(command.encode())
    assert shell.returncode == 0, command[:200]


def named(headers: tuple[tuple[str, bytes | None], ...] | None, name: str) -> list[bytes | None]:
    """The values of the headers of that name."""
    return [value for key, value in headers or () if key == name]


def test_groups_show_how_far_behind_each_partition_is(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with console_scene(tmp_path) as scene:
            await fill(scene)
            async with (
                scene.js.consume("orders", group="billing") as consumer,
                console(scene.browser, scene.address, "groups") as (page, watched),
            ):
                assert (await anext(consumer)).offset == 5
                await page.get_by_role("link", name="billing").click()
                partitions = page.get_by_role("region", name="Partitions").get_by_role("row")
                await partitions.nth(2).wait_for()
                cells = await partitions.nth(1).get_by_role("cell").all_inner_texts()
                assert (cells[:4], cells[4] == "nobody") == (["orders", "5", "20", "15"], False)
                cells = await partitions.nth(2).get_by_role("cell").all_inner_texts()
                assert (cells[:2], cells[4]) == (["payments/1", "0"], "nobody")
                assert cells[2] == cells[3]
                assert cells[2].isdigit()
                members = page.get_by_role("region", name="Members")
                await members.get_by_text("orders: 0").wait_for()
                watched.assert_nothing()

    run(scenario())


def test_the_cluster_and_its_numbers_are_shown(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with console_scene(tmp_path) as scene:
            await fill(scene)
            async with console(scene.browser, scene.address, "cluster") as (page, watched):
                await page.get_by_text("✓ alive").wait_for()
                await page.get_by_role("img", name="Free on the disk: ").wait_for()
                assert await command_shown(page) == "jetstream cluster info"
                watched.assert_nothing()

    run(scenario())


def test_what_is_wrong_is_named_with_the_section_of_the_runbook(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with console_scene(tmp_path) as scene:
            await fill(scene)
            async with console(scene.browser, scene.address, "health") as (page, watched):
                await page.get_by_text("✓ The node is ready.").wait_for()
                await page.get_by_text("Nothing is wrong").wait_for()
                stream = scene.node.stream("orders")
                assert stream is not None
                stream.log.reader.corrupt_ranges = ((Offset(3), Offset(5)),)
                await page.reload()
                await page.get_by_role("cell", name="RB-05 Readers get corrupt_data").wait_for()
                damaged = page.get_by_role("region", name="Damaged offsets").get_by_role("cell")
                assert await damaged.all_inner_texts() == ["3", "5"]
                stream.log.reader.corrupt_ranges = ()
                watched.assert_nothing()

    run(scenario())
