"""Everything the command says: results on standard output, all else on standard error.

Results are either tables for people or JSON for machines, one document or one object per line; errors
are one line without a traceback. Colours and progress bars appear on a terminal only.
"""

import json
import os
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import typer
import uvloop
from pydantic import BaseModel
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from envelope.errors import JetstreamError
from envelope.types import Offset
from jetstream.cli.output.exit_codes import EXPECTED_ERRORS, ExitCode, exit_code_of
from jetstream.client.read.read_progress import ReadProgress, ReadProgressTold

PIPED_WIDTH_CHARS: Final = 200
"""Width of a table that goes into a pipe or a file, where 80 columns would cut values."""


def result_console() -> Console:
    """Return a console on the standard output of this moment."""
    return Console(width=None if sys.stdout.isatty() else PIPED_WIDTH_CHARS, highlight=False)


def notice_console() -> Console:
    """Return a console on the standard error of this moment."""
    return Console(stderr=True, highlight=False)


def print_json(value: object) -> None:
    """Print one JSON document on one line, at once (a reader may be waiting at the other end of a pipe)."""
    plain = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    print(json.dumps(plain, ensure_ascii=False, separators=(",", ":")), flush=True)


def print_line(text: str) -> None:
    """Print one plain line, at once."""
    print(text, flush=True)


def print_result(result: object, text: str, as_json: bool) -> None:
    """Print what was done: for machines ``result``, as `print_json`, for people ``text``."""
    if as_json:
        print_json(result)
    else:
        print_line(text)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows for people; numbers are aligned right."""
    kept = [tuple(row) for row in rows]
    table = Table(title=escape(title), title_justify="left", show_edge=False, pad_edge=False)
    for index, column in enumerate(columns):
        numeric = bool(kept) and all(isinstance(row[index], int | float) for row in kept)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in kept:
        table.add_row(*(escape(cell_text(value)) for value in row))
    result_console().print(table)


def print_properties(title: str, properties: Mapping[str, object]) -> None:
    """Print named values of one thing for people."""
    table = Table(
        title=escape(title), title_justify="left", show_header=False, show_edge=False, pad_edge=False
    )
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in properties.items():
        table.add_row(escape(name), escape(cell_text(value)))
    result_console().print(table)


def cell_text(value: object) -> str:
    """Return a value as people read it: digits in groups, yes and no, a dash for nothing."""
    match value:
        case None | "" | [] | () | {}:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.1f}"
        case _:
            return printable(str(value))


def printable(text: str) -> str:
    """Return ``text`` with control characters escaped, so that a message cannot steer the terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


@contextmanager
def progress(description: str, total: int | None, quiet: bool = False) -> Iterator[Callable[[int], None]]:
    """Show a bar on standard error (a terminal only) and yield the function that moves it on by a count."""
    console = notice_console()
    if quiet or not console.is_terminal:
        yield lambda _count: None
        return
    with _bar(console) as bar:
        task = bar.add_task(description, total=total)
        yield lambda count: bar.advance(task, count)


@contextmanager
def reading_progress(description: str, quiet: bool = False) -> Iterator[ReadProgressTold]:
    """Show how far a reader is in its range, as `progress` does, and yield what the reader is to tell."""
    console = notice_console()
    if quiet or not console.is_terminal:
        yield lambda _progress: None
        return
    with _bar(console) as bar:
        task = bar.add_task(description, total=None)
        start: Offset | None = None

        def told(reached: ReadProgress) -> None:
            nonlocal start
            start = reached.offset if start is None else start
            total = None if reached.end is None else reached.end - start
            bar.update(task, total=total, completed=reached.offset - start)

        yield told


def _bar(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True)


def notice(text: str) -> None:
    """Print a line for people beside the result, on standard error."""
    print(printable(text), file=sys.stderr, flush=True)


@contextmanager
def reported_errors(as_json: bool = False) -> Iterator[None]:
    """Turn the expected errors of the block into one line on standard error and an exit code.

    Raises:
        typer.Exit: in place of every expected error, of SIGINT, and of a reader that closed the pipe.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    except BrokenPipeError:
        # `jetstream read … | head` is not a failure; nothing more may be written, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(ExitCode.OK) from None
    except EXPECTED_ERRORS as error:
        report(error, as_json)
        raise typer.Exit(exit_code_of(error)) from None


def report(error: BaseException, as_json: bool) -> None:
    """Print one error on standard error, for people or in the request API's shape."""
    text = describe(error)
    if not as_json:
        notice(f"error: {text}")
        return
    body: dict[str, object] = {
        "err_code": type(error).__name__,
        "description": text,
        "retriable": False,
        "exit_code": int(exit_code_of(error)),
    }
    if isinstance(error, JetstreamError):
        body |= {"err_code": error.err_code, "retriable": error.retriable}
        body |= {"detail": error.detail} if error.detail else {}
    print(json.dumps({"error": body}), file=sys.stderr, flush=True)


def describe(error: BaseException) -> str:
    """Return what went wrong in words; never the text of a secret."""
    if isinstance(error, JetstreamError):
        return error.description
    text = str(error).removeprefix("nats: ") or type(error).__name__
    return text if isinstance(error, OSError) else f"NATS: {text}"


def run_async(work: Coroutine[object, object, None]) -> None:
    """Run one command's coroutine on the event loop that nodes use.

    Expected errors that a task group has gathered are raised as the first of them; a bug beside them stays a
    group with its tracebacks.
    """
    first: BaseException | None = None
    try:
        uvloop.run(work)
    except* EXPECTED_ERRORS as gathered:
        first = gathered
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
    if first is not None:
        raise first
