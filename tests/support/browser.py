"""The console in a real Chromium, and what must not happen there: errors, dialogs, requests to elsewhere."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from shutil import which
from typing import Final

import pytest
from playwright.async_api import Browser, Dialog, Error, Page, Request, async_playwright

from jetstream.node.node import Node

_OPTIONS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

WAIT_MS: Final = 30_000


def chromium_program() -> str:
    """Return the path of the browser; skips the test where there is none."""
    found = os.environ.get("JETSTREAM_CHROMIUM") or which("chromium")
    if found is None:
        pytest.skip("NO CHROMIUM: the console is not tested (Debian: apt-get install chromium)")
    return found


@dataclass
class Watched:
    """What happened in a page that must not happen."""

    origin: str
    errors: list[str] = field(default_factory=list)
    """Uncaught errors, and what the browser complains of: what its policy has refused, too."""
    dialogs: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    """Requests to other places than the node."""

    def watch(self, page: Page) -> None:
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on(
            "console", lambda message: self.errors.append(message.text) if message.type == "error" else None
        )
        page.on("request", self._asked)
        page.on("dialog", self._dialog)

    def _asked(self, request: Request) -> None:
        if request.redirected_from is not None:
            return  # where a redirect that the page does not follow leads to: nothing is sent there
        if not request.url.startswith((self.origin, "data:", f"blob:{self.origin}")):
            self.elsewhere.append(request.url)

    async def _dialog(self, dialog: Dialog) -> None:
        self.dialogs.append(dialog.message)
        await dialog.dismiss()

    def assert_nothing(self) -> None:
        assert self.errors == []
        self.assert_nothing_is_run()

    def assert_nothing_is_run(self) -> None:
        """As `assert_nothing`, where the browser may complain, as of a node that does not answer."""
        assert self.dialogs == []
        assert self.elsewhere == []


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """Start Chromium, without a network of its own."""
    program = chromium_program()
    async with async_playwright() as playwright:
        started = await playwright.chromium.launch(executable_path=program, args=list(_OPTIONS))
        try:
            yield started
        finally:
            await started.close()


@asynccontextmanager
async def console(
    browser: Browser, address: tuple[str, int], view: str = "streams", **options: object
) -> AsyncIterator[tuple[Page, Watched]]:
    """Open a view of a node's console in a context of its own; ``options`` are the context's."""
    origin = f"http://{address[0]}:{address[1]}/"
    context = await browser.new_context(**options)  # type: ignore[arg-type] # one of many keywords
    context.set_default_timeout(WAIT_MS)
    try:
        page = await context.new_page()
        watched = Watched(origin)
        watched.watch(page)
        await page.goto(f"{origin}#/{view}")
        try:
            yield page, watched
        except (Error, AssertionError) as error:
            error.add_note(f"{watched}\n{await page.inner_text('body')}")
            raise
    finally:
        await context.close()


def http_address(node: Node) -> tuple[str, int]:
    """Return where a node of this process answers."""
    assert node.http_address is not None
    return node.http_address


SCREENSHOTS: Final = os.environ.get("JETSTREAM_CONSOLE_SCREENSHOTS")
"""A folder; the tests leave the pictures of docs/console.md there."""


async def picture(page: Page, name: str) -> None:
    """Leave a picture of the page, if pictures are wanted."""
    if SCREENSHOTS is not None:
        await page.evaluate("scrollTo(0, 0)")
        await page.screenshot(path=Path(SCREENSHOTS) / f"console-{name}.png")
