"""docs/api is what the models say."""

import json
import re
from pathlib import Path

import pytest

from metadata.api.__main__ import TABLES, cut_at_table, main
from metadata.api.reference import schemas
from metadata.api.requests import REQUESTS
from metadata.api.subjects import request_subject, split_subject
from metadata.api.wire import parse_request

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "api.md").read_text(encoding="utf-8")


def test_the_schemas_in_docs_are_the_models() -> None:
    written = {
        path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (DOCS / "api").glob("*.json")
    }
    assert written == schemas(), "run python -m metadata.api docs/api"


@pytest.mark.parametrize("word", TABLES)
def test_the_tables_in_docs_are_what_the_code_declares(word: str) -> None:
    assert cut_at_table(PAGE, word)[1] == TABLES[word](), "run python -m metadata.api docs/api"


def test_writing_the_docs_again_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "api").mkdir()
    (tmp_path / "api.md").write_text(PAGE, encoding="utf-8")
    main(str(tmp_path / "api"))
    assert (tmp_path / "api.md").read_text(encoding="utf-8") == PAGE
    for path in (DOCS / "api").glob("*.json"):
        assert (tmp_path / "api" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("suffix", sorted(REQUESTS))
def test_the_first_example_of_every_request_is_one(suffix: str) -> None:
    section = PAGE.partition(f"\n## {suffix}\n")[2]
    example = re.search(r"```json\n(.*?)```", section, re.DOTALL)
    assert example is not None
    subject = request_subject(suffix, json.loads(example[1]))
    assert isinstance(parse_request(subject, example[1].encode()), REQUESTS[suffix])


def test_the_examples_for_the_nats_cli_are_requests() -> None:
    lines = re.findall(r"^nats req jetstream\.api\.(\S+)\s+'(.*)'$", PAGE, re.MULTILINE)
    assert {split_subject(suffix)[0] for suffix, _ in lines} == set(REQUESTS)
    for suffix, payload in lines:
        parse_request(suffix, payload.encode())


def test_every_field_of_a_request_is_described_or_named_on_the_page() -> None:
    for model in REQUESTS.values():
        for name in model.model_fields:
            assert f"`{name}`" in PAGE or f'"{name}"' in PAGE, name
