import json

import pytest

from jetstream.cli.output.console import (
    cell_text,
    print_json,
    print_properties,
    print_table,
    printable,
    progress,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        ("", "-"),
        ([], "-"),
        ({}, "-"),
        (True, "yes"),
        (False, "no"),
        (0, "0"),
        (1234567, "1,234,567"),
        (1234.56, "1,234.6"),
        ("a\x1bb", "a\\x1bb"),
    ],
)
def test_a_value_is_shown_as_people_read_it(value: object, text: str) -> None:
    assert cell_text(value) == text


def test_what_cannot_be_printed_is_escaped_and_all_else_is_kept() -> None:
    assert printable("größe 日本 [x]") == "größe 日本 [x]"
    assert printable("a\r\n\x00\u2028b") == "a\\r\\n\\x00\\u2028b"


def test_a_long_value_is_whole_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    subject = "orders." + "x" * 120
    print_table("streams", ("name", "subject"), [("a", subject)])
    print_properties("a", {"subject": subject})
    assert capsys.readouterr().out.count(subject) == 2


def test_brackets_in_a_value_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("[bold]t", ("a",), [("[red]x[/red]",)])
    assert "[red]x[/red]" in capsys.readouterr().out


def test_a_table_without_rows_is_its_head(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("0 streams", ("stream", "size"), [])
    assert "stream" in capsys.readouterr().out


def test_json_is_one_line_and_keeps_its_letters(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": "ä\n"})
    out = capsys.readouterr().out
    assert out == '{"a":"ä\\n"}\n'
    assert json.loads(out) == {"a": "ä\n"}


def test_progress_is_silent_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("working", 10) as told:
        told(10)
    assert capsys.readouterr() == ("", "")
