"""Every view of the console of a real node, in a real Chromium."""

from pathlib import Path

import jetstream
from tests.support.browser import browser, console, http_address
from tests.support.nodes import nats_and_node, run


def test_the_list_shows_every_stream_and_leads_to_each(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            nats_and_node(tmp_path, http={"port": 0}) as (url, node),
            jetstream.connect(url) as js,
            browser() as chromium,
        ):
            for name in ("orders", "payments"):
                await js.streams.create(name, f"{name}.>")
            await js.publish("orders.new", b"1")
            async with console(chromium, http_address(node)) as (page, watched):
                row = page.get_by_role("row", name="orders")
                await row.get_by_text("✓ online").wait_for()
                assert await page.get_by_role("row").count() == 3
                await page.get_by_role("link", name="orders", exact=True).click()
                await page.get_by_role("heading", name="orders").wait_for()
                await page.get_by_text("0 to 1", exact=True).wait_for()
                assert await page.locator("#ways code").first.inner_text() == "jetstream stream info orders"
                watched.assert_nothing()

    run(scenario())
