"""The printed tables of the saved reports are what the reports print, and the index names each."""

import re
from pathlib import Path

import pytest

from benchmarks.report import Report, as_markdown

_RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


@pytest.mark.parametrize("name", sorted(path.stem for path in _RESULTS.glob("*.json")))
def test_a_saved_table_is_what_its_report_prints(name: str) -> None:
    report = Report.model_validate_json((_RESULTS / f"{name}.json").read_text())
    printed = (_RESULTS / f"{name}.md").read_text().rstrip("\n")
    assert printed == as_markdown(report).rstrip("\n"), (
        f"run: python -m benchmarks table {name}.json > {name}.md"
    )


def test_the_index_of_the_results_links_each_table() -> None:
    index = (_RESULTS / "README.md").read_text()
    tables = {path.name for path in _RESULTS.glob("*.md")} - {"README.md"}
    assert tables == set(re.findall(r"\((\w+\.md)\)", index))
