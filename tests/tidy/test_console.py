"""The console's files: texts stay texts, nothing comes from elsewhere, and it stays small."""

import re
from pathlib import Path

import pytest

from envelope.errors import registry
from jetstream.node.http.metrics import METRICS
from tests.tidy.source_tree import ROOT

FILES = sorted((ROOT / "jetstream" / "node" / "http" / "console" / "static").iterdir())
LINES_MAX = 3_000
COLUMNS_MAX = 120

FORBIDDEN = re.compile(
    r"(inner|outer|adjacent)html|document\.write|domparser|contextualfragment|sethtml|srcdoc|[\"'<]template"
    r"|\beval\b|new function|\bimport\(|settimeout\(\s*[\"'`]|javascript:"
    r"|https?://(?!www\.w3\.org/2000/svg)|\bstyle=|\son[a-z]+=",
    re.IGNORECASE,
)
"""What makes HTML or a program of a text, asks another place, or stands in the page against its policy."""


def _findings(text: str) -> list[str]:
    return [line for line in text.splitlines() if FORBIDDEN.search(line)]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_no_text_becomes_html_or_a_program(file: Path) -> None:
    assert _findings(file.read_text()) == []


@pytest.mark.parametrize(
    "line",
    [
        "cell.innerHTML = value;",
        "cell.insertAdjacentHTML('beforeend', value);",
        "new DOMParser().parseFromString(value, 'text/html')",
        "setTimeout('run()', 1)",
        "await import(value)",
        '<script src="https://example.org/chart.js">',
        '<button onclick="run()">',
        '<p style="color: red">',
    ],
)
def test_each_way_to_do_so_is_found(line: str) -> None:
    assert _findings(line) == [line]


def test_the_console_stays_small() -> None:
    texts = {file.name: file.read_text().splitlines() for file in FILES}
    assert sum(len(lines) for lines in texts.values()) < LINES_MAX
    assert {name for name, lines in texts.items() if max(map(len, lines)) > COLUMNS_MAX} == set()


def _problems() -> str:
    return next(file for file in FILES if file.name == "problems.js").read_text()


def test_every_section_that_the_console_names_is_one_of_the_runbook() -> None:
    named = dict(re.findall(r'^  "(RB-\d\d)": "(.+)",$', _problems(), re.MULTILINE))
    headings = (ROOT / "docs" / "runbook.md").read_text().replace("`", "")
    assert len(named) > 10
    assert {number for number, title in named.items() if f"\n## {number} {title}\n" not in headings} == set()
    assert set(re.findall(r'"(RB-\d\d)"', _problems())) == set(named)


def test_every_error_and_metric_that_the_console_knows_exists() -> None:
    table = re.search(r"const BY_CODE = \{(.*?)\};", _problems(), re.DOTALL)
    assert table is not None
    codes = set(re.findall(r"(\w+):", table[1]))
    assert codes
    assert codes <= set(registry())
    texts = "".join(file.read_text() for file in FILES)
    metrics = set(re.findall(r"\bjetstream_[a-z_]+[a-z]\b", texts))
    assert len(metrics) > 10
    assert metrics <= {metric.name for metric in METRICS}
