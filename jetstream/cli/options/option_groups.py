"""Options that several commands share, declared once as the fields of a frozen dataclass.

A command takes the dataclass as an ordinary parameter; `expanded` shows typer its fields as options and
gathers the parsed values back into the dataclass.
"""

import copy
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from typing import Annotated, Any, get_args

import typer


def variable(prefix: str, option: str) -> str:
    """Return the environment variable of an option: ``--tls-ca`` is ``PREFIX_TLS_CA``."""
    return prefix + option.removeprefix("-").replace("-", "_").upper()


def variable_option(name: str, env: str, metavar: str | None, text: str, panel: str) -> Any:  # noqa: ANN401  # as typer's
    """Declare an option; its default is never shown, because it may come from a secret variable."""
    return typer.Option(
        name, envvar=env, metavar=metavar, help=text, rich_help_panel=panel, show_default=False
    )


@dataclass(frozen=True, slots=True)
class Prefixed:
    """Makes the options of a parameter a second set: ``Annotated[Group, Prefixed("from")]``.

    There ``--user`` is ``--from-user`` and its variable ``JETSTREAM_FROM_USER``; what ``--nats`` is
    to the first set, ``--from`` is to the second.
    """

    prefix: str

    def renamed(self, field: inspect.Parameter) -> inspect.Parameter:
        """Return the option of the second set for one of the first."""
        kind, declared = get_args(field.annotation)
        option = copy.copy(declared)
        name = declared.default.removeprefix("--")  # where typer has the name of an option in `Annotated`
        option.default = f"--{self.prefix}" if name == "nats" else f"--{self.prefix}-{name}"
        option.envvar = variable("JETSTREAM", option.default)
        option.rich_help_panel = f"--{self.prefix}: {declared.rich_help_panel}"
        return field.replace(name=f"{self.prefix}_{field.name}", annotation=Annotated[kind, option])


def expanded(command: Callable[..., None]) -> Callable[..., None]:
    """Return ``command`` with every dataclass parameter replaced by the options its fields declare."""
    parameters: list[inspect.Parameter] = []
    groups: dict[str, tuple[type[Any], dict[str, str]]] = {}
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        group, *said = get_args(parameter.annotation) or (parameter.annotation,)
        if not is_dataclass(group):
            parameters.append(parameter)
            continue
        assert isinstance(group, type), "an annotation is a type"
        fields = inspect.signature(group, eval_str=True).parameters
        prefixes = [each for each in said if isinstance(each, Prefixed)]
        options = {name: prefixes[0].renamed(field) if prefixes else field for name, field in fields.items()}
        groups[parameter.name] = (group, {name: option.name for name, option in options.items()})
        parameters.extend(option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in options.values())
    names = [parameter.name for parameter in parameters]
    assert len(names) == len(set(names)), f"two options of {command.__name__} share a name: {names}"

    @functools.wraps(command)
    def gathered(**values: Any) -> None:  # noqa: ANN401  # typer has parsed them to the declared types
        for name, (group, fields) in groups.items():
            values[name] = group(**{field: values.pop(option) for field, option in fields.items()})
        command(**values)

    shown = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    gathered.__dict__["__signature__"] = inspect.Signature(shown)
    gathered.__annotations__ = {parameter.name: parameter.annotation for parameter in shown} | {
        "return": None
    }
    del gathered.__dict__["__wrapped__"]  # typer must not look through to the original's parameters
    return gathered
