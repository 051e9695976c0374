"""Sizes, durations, headers and labels as people type them on a command line."""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Final, TypeVar

import typer

from envelope.errors import RequestError
from jetstream.protocol import durations

_SIZE: Final = re.compile(r"([0-9]+)\s*([A-Za-z]*)")
_SIZE_UNITS: Final = {
    "": 1,
    "b": 1,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "tb": 1000**4,
}

Value = TypeVar("Value")


def parse_size(text: str) -> int:
    """Return bytes: ``1048576``, ``64MiB`` (powers of 1024), ``10MB`` (powers of 1000)."""
    found = _SIZE.fullmatch(text.strip())
    unit = _SIZE_UNITS.get(found[2].lower()) if found else None
    if found is None or unit is None:
        raise typer.BadParameter(f"{text!r} is not a size: use bytes, or KiB, MiB, GiB, TiB")
    return int(found[1]) * unit


def parse_option(parse: Callable[[str], Value], text: str) -> Value:
    """Return what ``parse`` makes of the text of an option.

    Raises:
        typer.BadParameter: it refuses the text.
    """
    try:
        return parse(text)
    except RequestError as error:
        raise typer.BadParameter(error.description) from None


def parse_duration(text: str) -> timedelta:
    """Return a duration as `durations.parse_duration` does."""
    return parse_option(durations.parse_duration, text)


def parse_header(text: str) -> tuple[str, str]:
    """Return name and value of ``Name: value``.

    Raises:
        typer.BadParameter: no colon, an empty name, or a line break that would forge another header.
    """
    name, colon, value = text.partition(":")
    if not colon or not name.strip() or any(c in text for c in "\r\n"):
        raise typer.BadParameter(f"{text!r} is not a header: use 'Name: value'")
    return name.strip(), value.strip()


def parse_label(text: str) -> tuple[str, str]:
    """Return key and value of ``key=value``."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise typer.BadParameter(f"{text!r} is not a label: use key=value")
    return key, value


def size_text(size: int) -> str:
    """Return bytes for people: ``1.4 MiB``."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
