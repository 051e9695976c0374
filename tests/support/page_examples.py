"""Programs in the pages of the documentation."""

import re

from tests.support.commands import REPOSITORY

URL_ON_THE_PAGES = "nats://127.0.0.1:4222"


def blocks(page: str, language: str) -> list[str]:
    """Return the fenced blocks of one language, in order."""
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def python(page: str, number: int, url: str) -> str:
    return blocks(page, "python")[number].replace(URL_ON_THE_PAGES, url)
