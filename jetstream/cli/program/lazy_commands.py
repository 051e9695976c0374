"""Commands whose modules are imported when they are named: each starts with what it needs alone.

Half of the time until a small command does something would else go into the modules and options of the
others, at every key that completes one, too.
"""

from collections.abc import Iterator, Mapping, MutableMapping
from importlib import import_module
from typing import Any

import typer.main
from typer.core import TyperGroup

from jetstream.cli.program.help_text import add_command

Place = str
"""Where a command is: ``module:function``, below `jetstream.cli`; ``FUNCTION_EXAMPLES`` are beside it."""


class LazyCommands(MutableMapping[str, Any]):
    """Makes a command when it is taken; its name is known before."""

    def __init__(self, places: Mapping[str, Place | typer.Typer]) -> None:
        self._places = places
        self._made: dict[str, Any] = dict.fromkeys(places)

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401  # typer's commands have no public type
        made = self._made[name]
        if made is None:
            made = self._made[name] = _made(name, self._places[name])
        return made

    def __setitem__(self, name: str, command: Any) -> None:  # noqa: ANN401  # as above
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        del self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)


def lazy_group(places: Mapping[str, Place | typer.Typer]) -> type[TyperGroup]:
    """Return the ``cls`` of a `typer.Typer` that has these commands, and groups, by their names."""

    class LazyGroup(TyperGroup):
        def __init__(self, **attributes: Any) -> None:  # noqa: ANN401  # whatever typer has for a group
            super().__init__(**attributes)
            self.commands = LazyCommands(places)

        def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401  # typer's context
            return list(self.commands)

    return LazyGroup


def _made(name: str, place: Place | typer.Typer) -> Any:  # noqa: ANN401  # as above
    if isinstance(place, typer.Typer):
        return typer.main.get_group(place)
    module_name, function = place.split(":")
    module = import_module(f"jetstream.cli.{module_name}")
    app = typer.Typer(add_completion=False, rich_markup_mode="rich")
    add_command(app, name, getattr(module, function), getattr(module, f"{function.upper()}_EXAMPLES"))
    return typer.main.get_command(app)
