"""The ``--help`` texts: what several commands share, and how a docstring becomes one."""

import inspect
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Annotated, Any, Final

import typer
from rich.markup import escape

from jetstream.cli.options.option_groups import expanded
from jetstream.cli.output.console import reported_errors, run_async
from jetstream.cli.program.completion import group_names, stream_names

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of text for people.")]
StreamArgument = Annotated[
    str, typer.Argument(metavar="STREAM", help="Name of the stream.", autocompletion=stream_names)
]
GroupArgument = Annotated[
    str, typer.Argument(metavar="GROUP", help="Name of the consumer group.", autocompletion=group_names)
]

EXIT_CODES_HELP: Final = (
    "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 refused, 5 unreachable or no answer, "
    "6 stored data is damaged, 130 interrupted."
)


Command = Callable[..., Coroutine[object, object, None] | None]
"""Its expected errors are reported, as JSON if ``as_json`` is true; a coroutine is run on an event loop."""


def add_command(app: typer.Typer, name: str, command: Command, examples: tuple[str, ...]) -> None:
    """Add a command whose help is its docstring and whose epilog is the examples, one per line."""
    lines = "\n\n".join(f"  {example}" for example in examples)
    added = app.command(name, help=_paragraphs(command), epilog=escape(f"Examples:\n\n{lines}"))
    added(expanded(_reporting(command)))


def _reporting(command: Command) -> Callable[..., None]:
    @wraps(command)
    def run(**values: Any) -> None:  # noqa: ANN401  # typer has parsed them to the declared types
        with reported_errors(values.get("as_json", False)):
            work = command(**values)
            if work is not None:
                run_async(work)

    return run


def _paragraphs(command: Command) -> str:
    """Return the docstring with each paragraph on one line: the terminal decides where to wrap."""
    text = inspect.getdoc(command)
    assert text is not None, f"{command.__name__} has no docstring, so no --help"
    return escape("\n\n".join(" ".join(part.split()) for part in text.split("\n\n")))
