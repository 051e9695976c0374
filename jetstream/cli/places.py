"""Places in a stream as people name them: earliest, latest, an offset, a time."""

from datetime import UTC, datetime
from typing import Literal

import typer

from envelope.types import Offset

Place = Literal["earliest", "latest"] | Offset | datetime


def parse_place(text: str) -> Place:
    """Return the place ``text`` names.

    Digits are an offset; anything else is ISO 8601 (``2026-03-01``, ``2026-03-01T12:00:00Z``), in UTC
    unless it says otherwise.

    Raises:
        typer.BadParameter: none of these.
    """
    text = text.strip()
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if text.isascii() and text.isdigit():
        return Offset(int(text))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is no place in a stream: use earliest, latest, an offset or an ISO 8601 time"
        ) from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
