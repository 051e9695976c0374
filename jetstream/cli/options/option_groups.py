"""Options that several commands share, declared once as the fields of a frozen dataclass.

A command takes the dataclass as an ordinary parameter; `expanded` shows typer its fields as options and
gathers the parsed values back into the dataclass.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any

import typer


def variable(prefix: str, option: str) -> str:
    """Return the environment variable of an option: ``--tls-ca`` is ``PREFIX_TLS_CA``."""
    return prefix + option.removeprefix("-").replace("-", "_").upper()


def variable_option(name: str, env: str, metavar: str | None, text: str, panel: str) -> Any:  # noqa: ANN401  # as typer's
    """Declare an option; its default is never shown, because it may come from a secret variable."""
    return typer.Option(
        name, envvar=env, metavar=metavar, help=text, rich_help_panel=panel, show_default=False
    )


def expanded(command: Callable[..., None]) -> Callable[..., None]:
    """Return ``command`` with every dataclass parameter replaced by the options its fields declare."""
    parameters: list[inspect.Parameter] = []
    groups: dict[str, tuple[type[Any], tuple[str, ...]]] = {}
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        group: type[Any] = parameter.annotation
        if not is_dataclass(group):
            parameters.append(parameter)
            continue
        fields = inspect.signature(group, eval_str=True).parameters
        groups[parameter.name] = (group, tuple(fields))
        parameters.extend(field.replace(kind=inspect.Parameter.KEYWORD_ONLY) for field in fields.values())
    names = [parameter.name for parameter in parameters]
    assert len(names) == len(set(names)), f"two options of {command.__name__} share a name: {names}"

    @functools.wraps(command)
    def gathered(**values: Any) -> None:  # noqa: ANN401  # typer has parsed them to the declared types
        for name, (group, fields) in groups.items():
            values[name] = group(**{field: values.pop(field) for field in fields})
        command(**values)

    shown = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    gathered.__dict__["__signature__"] = inspect.Signature(shown)
    gathered.__annotations__ = {parameter.name: parameter.annotation for parameter in shown} | {
        "return": None
    }
    del gathered.__dict__["__wrapped__"]  # typer must not look through to the original's parameters
    return gathered
