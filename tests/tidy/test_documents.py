"""The pages are true where a test can tell: links, the error table, the dependencies, the index."""

import ast
import re
from pathlib import Path

import openapi_spec_validator
import pytest

from jetstream.node.http.v1.openapi import openapi
from metadata.features import LEVELS
from tests.tidy import errors_table, metrics_table, openapi_document
from tests.tidy.source_tree import PACKAGES, ROOT, documents, modules, table

_LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6}\s+(?P<text>.+?)\s*$", re.MULTILINE)
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_ADR_NAME = re.compile(r"\d{4}-[a-z0-9-]+\.md")
_ADR_PARTS = ("Status", "Context", "Decision", "Consequences", "What would change our mind")


def _prose(page: Path) -> str:
    return _FENCE.sub("", page.read_text())


def _anchors(page: Path) -> set[str]:
    """Heading anchors as code hosts make them."""
    headings = (match["text"] for match in _HEADING.finditer(_prose(page)))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _broken_links(page: Path) -> list[str]:
    broken = []
    for match in _LINK.finditer(_prose(page)):
        target, _, anchor = match["target"].partition("#")
        if "://" in match["target"] or match["target"].startswith("mailto:"):
            continue
        file = (page.parent / target).resolve() if target else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in _anchors(file)):
            broken.append(f"{page.relative_to(ROOT)}: {match['target']}")
    return broken


def test_every_link_between_pages_resolves() -> None:
    broken = [link for page in documents() for link in _broken_links(page)]
    assert not broken, "\n".join(broken)


def test_the_index_names_every_page() -> None:
    """The records have an index of their own, which the index of the pages links."""
    for index in (ROOT / "docs" / "README.md", ROOT / "docs" / "adr" / "README.md"):
        pages = [page.relative_to(index.parent).as_posix() for page in index.parent.rglob("*.md")]
        listed = [page for page in pages if page != "README.md" and not re.match(r"adr/\d", page)]
        missing = [page for page in listed if f"({page})" not in index.read_text()]
        assert not missing, f"{index.relative_to(ROOT)} does not link {missing}"


def test_the_index_of_the_records_has_their_titles() -> None:
    folder = ROOT / "docs" / "adr"
    index = (folder / "README.md").read_text()
    rows = re.findall(r"^\| \[(\d{4})\]\(([^)]+)\) \| (.+) \|$", index, re.MULTILINE)
    assert rows
    for number, name, title in rows:
        assert (folder / name).read_text().split("\n")[0] == f"# {number}: {title}"


def test_every_record_that_is_named_exists() -> None:
    numbers = {record.name[:4] for record in (ROOT / "docs" / "adr").glob("[0-9]*.md")}
    texts = {module.path: module.text for module in modules()}
    texts |= {page.relative_to(ROOT).as_posix(): page.read_text() for page in documents()}
    named = {(path, number) for path, text in texts.items() for number in re.findall(r"ADR (\d{4})", text)}
    assert not {(path, number) for path, number in named if number not in numbers}


def test_no_line_of_prose_is_wider_than_a_screen() -> None:
    wide = []
    for page in documents():
        if page.parent.name in ("support", "results"):
            continue  # what prints them decides on their lines
        for line in _prose(page).splitlines():
            table_or_heading = line.lstrip().startswith(("|", "#", "<"))
            if len(line) > 120 and not table_or_heading and " " in line.strip("-* "):
                wide.append(f"{page.relative_to(ROOT)}: {line[:60]}…")
    assert not wide, "\n".join(wide)


def test_no_cell_of_a_table_is_longer_than_200_characters() -> None:
    long = [
        f"{page.relative_to(ROOT)}: {cell.strip()[:60]}…"
        for page in documents()
        if page.name != "invariants.md"  # its cells are lists of modules, made from the code
        for line in _prose(page).splitlines()
        if line.lstrip().startswith("|")
        for cell in re.split(r"(?<!\\)\|", line)
        if len(cell.strip()) > 200
    ]
    assert not long, "\n".join(long)


def test_the_error_table_is_the_registry() -> None:
    page = errors_table.PAGE.read_text()
    assert errors_table.with_table(page) == page, "run: python -m tests.tidy.errors_table"


def test_the_openapi_document_is_what_the_node_answers() -> None:
    assert openapi_document.FILE.read_text() == openapi_document.render(), (
        "run: python -m tests.tidy.openapi_document"
    )
    openapi_spec_validator.validate(openapi())


def test_the_metrics_page_lists_every_metric() -> None:
    page = metrics_table.PAGE.read_text()
    assert metrics_table.with_table(page) == page, "run: python -m tests.tidy.metrics_table"


@pytest.mark.parametrize("err_code", sorted(errors_table.documented()))
def test_every_error_says_what_it_means(err_code: str) -> None:
    assert errors_table.documented()[err_code].__doc__, err_code
    assert f"| `{err_code}` |" in errors_table.PAGE.read_text()


def _dependencies() -> list[str]:
    project = table("project")
    optional, build = project["optional-dependencies"], table("build-system")["requires"]
    assert isinstance(project["dependencies"], list)
    assert isinstance(optional, dict)
    assert isinstance(build, list)
    lines = [*build, *project["dependencies"], *(line for lines in optional.values() for line in lines)]
    return sorted({re.split(r"[\[<>=~!; ]", line)[0] for line in lines})


def test_each_dependency_earns_its_place() -> None:
    page = (ROOT / "docs" / "adr" / "0005-dependencies.md").read_text()
    listed = set(re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE))
    assert listed == set(_dependencies())


def test_every_decision_record_has_its_parts_and_its_own_number() -> None:
    records = sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))
    numbers = [record.name[:4] for record in records]
    assert len(numbers) == len(set(numbers)), "two records have one number"
    for record in records:
        assert _ADR_NAME.fullmatch(record.name), record.name
        headings = [match["text"] for match in _HEADING.finditer(_prose(record))]
        missing = [part for part in _ADR_PARTS if part not in headings]
        assert not missing, f"{record.name} has no {missing}"


def test_every_documented_test_exists() -> None:
    """A guarantee names the test that shows it: the path is there, and so is the function."""
    missing = []
    for page in documents():
        for path, name in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page.read_text()):
            file = ROOT / path
            if not file.exists() or (name and f"def {name}(" not in file.read_text()):
                missing.append(f"{page.relative_to(ROOT)}: {path}::{name}")
    assert not missing, "\n".join(missing)


def test_the_check_script_runs_the_readmes_test_command() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    [command] = re.findall(r"^python -m pytest.*$", (ROOT / "README.md").read_text(), re.MULTILINE)
    commands = re.findall(r"^ *check (python .*)$", script, re.MULTILINE)
    assert commands[0] == command
    described = (ROOT / "docs" / "testing.md").read_text()
    assert not [command for command in commands if command not in described]


def test_the_map_of_the_test_equipment_has_every_module_with_its_first_line() -> None:
    lines = (ROOT / "tests" / "support" / "README.md").read_text().splitlines()
    equipment = [m for m in modules() if re.fullmatch(r"tests/support/(?!__init__)\w+\.py", m.path)]
    first_lines = {Path(m.path).stem: (ast.get_docstring(m.tree) or "").split("\n")[0] for m in equipment}
    assert sorted(line for line in lines if line.startswith("- ")) == sorted(
        f"- `{name}`: {line}" for name, line in first_lines.items()
    )


def test_the_page_of_upgrades_lists_every_feature_level() -> None:
    rows = re.findall(r"^\| ([0-9]+) \| (.+) \|$", (ROOT / "docs" / "upgrading.md").read_text(), re.MULTILINE)
    listed = [(int(level), words) for level, words in rows]
    assert listed[0][0] == 0
    assert listed[1:] == [
        (level, feature.value) for level, features in enumerate(LEVELS) for feature in features
    ]


def test_every_alert_names_an_entry_of_the_runbook() -> None:
    rules = (ROOT / "deploy" / "prometheus" / "rules.yaml").read_text()
    anchors = _anchors(ROOT / "docs" / "runbook.md")
    named = re.findall(r"runbook_url: docs/runbook\.md#(rb-\d\d-\S+)$", rules, re.MULTILINE)
    assert len(named) == rules.count("- alert: ")
    assert not set(named) - anchors


def test_every_runbook_entry_that_a_log_line_names_exists() -> None:
    entries = set(re.findall(r"^## (RB-\d\d) ", (ROOT / "docs" / "runbook.md").read_text(), re.MULTILINE))
    named = {(m.path, found) for m in modules() for found in re.findall(r"runbook=(RB-\d\d)", m.text)}
    assert named, "no log line names an entry"
    assert not {(path, found) for path, found in named if found not in entries}


def test_no_field_of_an_event_has_a_name_that_every_line_of_the_log_has() -> None:
    taken = re.compile(r"\b(?:time|level|logger|message|traceback|node_id)=%")
    assert not [module.path for module in modules() if module.inside(*PACKAGES) and taken.search(module.text)]
