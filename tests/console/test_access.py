"""The console where the port wants a token, or readers a ticket."""

from pathlib import Path

import jetstream
from tests.support.browser import browser, console, http_address
from tests.support.console_scene import console_scene, fill
from tests.support.nodes import nats_and_node, run
from tests.support.socket_operations import ticket

TOKEN = "a-secret"


def test_the_page_asks_for_the_token_and_keeps_it_in_its_tab(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with console_scene(tmp_path, token=TOKEN) as scene:
            await fill(scene)
            async with console(scene.browser, scene.address) as (page, watched):
                for typed in ("wrong", TOKEN):
                    dialog = page.get_by_role("dialog", name="Token")
                    await dialog.get_by_text("token").first.wait_for()
                    await dialog.get_by_role("textbox").or_(dialog.locator("input")).first.fill(typed)
                    await page.keyboard.press("Enter")
                await page.get_by_role("link", name="orders", exact=True).wait_for()
                assert TOKEN not in await page.content()
                assert "$TOKEN" in await page.locator("#ways").inner_text()
                await page.reload()
                await page.get_by_role("link", name="orders", exact=True).wait_for()
                assert await page.evaluate("localStorage.length") == 1, "the theme, and no token"
                another = await page.context.new_page()
                await another.goto(watched.origin)
                await another.get_by_role("dialog", name="Token").wait_for()
                watched.assert_nothing_is_run()
                assert all("401" in error for error in watched.errors)

    run(scenario())


def test_a_ticket_shows_its_stream_and_nothing_else(tmp_path: Path) -> None:
    async def scenario() -> None:
        socket = {"port": 0, "require": "ticket"}
        async with (
            browser() as chromium,
            nats_and_node(tmp_path, http={"port": 0}, socket=socket) as (url, node),
            jetstream.connect(url) as js,
        ):
            await js.streams.create("orders", "orders.>")
            await js.publish("orders.x", b"to be read")
            shown = await ticket(js, "read", stream="orders")
            async with console(chromium, http_address(node), "records/orders") as (page, watched):
                await page.get_by_role("dialog", name="Token").locator("input").fill(shown)
                await page.keyboard.press("Enter")
                await page.get_by_role("cell", name="to be read").wait_for()
                await page.keyboard.press("1")
                await page.get_by_text("A ticket shows the records of its own stream").wait_for()
                watched.assert_nothing_is_run()

    run(scenario())
