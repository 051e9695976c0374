"""How the console looks: without barriers, in the dark, on a telephone and on a wall, and by keys alone."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page

from tests.support.browser import console, picture
from tests.support.console_scene import ConsoleScene, console_scene, fill, fill_hostile
from tests.support.node_packages import NotInstallable, installed
from tests.support.nodes import run

VIEWS = {
    "streams": "streams",
    "stream": "streams/orders",
    "partitions": "streams/payments",
    "records": "records/orders",
    "hostile": "records/hostile",
    "groups": "groups",
    "group": "groups/billing",
    "cluster": "cluster",
    "health": "health",
    "nothing": "records",
}
PICTURES = {("light", "streams"), ("dark", "records"), ("light", "cluster")}
"""In docs/console.md."""
COLUMN_MIN = 40
"""Pixels in which one sees what a column is."""
WIDTHS = (320, 768, 1280, 3840)


@pytest.fixture(scope="module")
def axe() -> str:
    """The program that looks for barriers."""
    try:
        packages = installed(Path(__file__).parent)
    except NotInstallable as error:
        pytest.skip(f"NO AXE: the console's accessibility is not tested: {error}")
    return (packages / "node_modules" / "axe-core" / "axe.min.js").read_text()


@asynccontextmanager
async def filled_scene(directory: Path) -> AsyncIterator[ConsoleScene]:
    async with console_scene(directory) as scene:
        await fill(scene)
        await fill_hostile(scene)
        yield scene


async def until_read(page: Page) -> None:
    """Wait until the view has what it shows."""
    await page.get_by_text("✓ ready").wait_for()
    await page.locator("p", has_text="Reading…").first.wait_for(state="detached")


async def look_at(page: Page, view: str) -> None:
    """Go to a view, and open a record where there are some."""
    await page.evaluate(f"location.hash = '#/{VIEWS[view]}'")
    await until_read(page)
    if VIEWS[view].startswith("records/"):
        await page.locator("tbody button").first.click()


async def barriers(page: Page) -> dict[str, list[str]]:
    """The elements that break a rule, by rule."""
    result: dict[str, Any] = await page.evaluate("axe.run()")
    assert result["passes"]
    return {rule["id"]: [node["html"] for node in rule["nodes"]] for rule in result["violations"]}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_view_has_a_barrier(axe: str, scheme: str, tmp_path: Path) -> None:
    """WCAG 2.2 AA and the practices of axe-core, contrast among them."""

    async def scenario() -> None:
        async with (
            filled_scene(tmp_path) as scene,
            console(scene.browser, scene.address, color_scheme=scheme) as (page, watched),
        ):
            await page.evaluate(axe)
            for view in VIEWS:
                await look_at(page, view)
                result: dict[str, Any] = await page.evaluate("axe.run()")
                assert result["passes"], view
                found = {
                    rule["id"]: [node["html"] for node in rule["nodes"]] for rule in result["violations"]
                }
                assert found == {}, view
                if (scheme, view) in PICTURES:
                    await picture(page, view)
            await page.get_by_role("button", name="Token").click()
            assert await barriers(page) == {}
            watched.assert_nothing()

    run(scenario())


def test_every_view_fits_every_width(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with filled_scene(tmp_path) as scene:
            for width in WIDTHS:
                size = {"width": width, "height": max(568, width * 9 // 16)}
                async with console(scene.browser, scene.address, viewport=size) as (page, _):
                    for view in VIEWS:
                        await look_at(page, view)
                        wide = await page.evaluate("document.documentElement.scrollWidth")
                        assert wide <= width, (view, width)
                        columns = [
                            await head.bounding_box() for head in await page.locator("th:visible").all()
                        ]
                        assert all(box and box["width"] > COLUMN_MIN for box in columns), (view, width)

    run(scenario())


def test_all_is_reached_by_keys(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            filled_scene(tmp_path) as scene,
            console(scene.browser, scene.address) as (page, watched),
        ):
            await page.get_by_role("link", name="payments/0").wait_for()
            await page.keyboard.press("/")
            await page.keyboard.type("order")
            await page.get_by_text("1 of 6 streams").wait_for()
            await tab_to(page, "region", "Streams")
            await page.keyboard.press("Enter")
            await page.get_by_role("heading", name="orders").wait_for()
            await page.keyboard.press("5")
            await page.get_by_role("heading", name="Health").wait_for()
            await page.keyboard.press("1")
            await page.get_by_role("link", name="payments/0").wait_for()
            await tab_to(page, "region", "Streams")
            await page.keyboard.press("End")
            await page.keyboard.press("ArrowUp")
            await page.keyboard.press("Enter")
            await page.get_by_role("heading", name="payments/2").wait_for()
            await page.keyboard.press("?")
            await page.get_by_role("dialog", name="Keys").wait_for()
            await page.keyboard.press("Escape")
            await page.get_by_role("dialog", name="Keys").wait_for(state="detached")
            watched.assert_nothing()

    run(scenario())


async def tab_to(page: Page, role: str, name: str) -> None:
    """Press the tab key until an element has the focus."""
    for _ in range(50):
        await page.keyboard.press("Tab")
        focus = "[document.activeElement.getAttribute('role'), document.activeElement.ariaLabel]"
        if await page.evaluate(focus) == [role, name]:
            return
    raise AssertionError(f"no {role} {name}")
