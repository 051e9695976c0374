"""Places in a stream as people name them: earliest, latest, an offset, a time, a transaction id."""

from datetime import UTC, datetime
from typing import Literal

import typer

from envelope.types import Offset
from jetstream.client.read.read_range import Txid

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


def parse_start(text: str) -> Place | Txid:
    """Return the place at which to begin: as `parse_place`; ``txid:42`` is a transaction id.

    Raises:
        typer.BadParameter: none of these.
    """
    kind, colon, number = text.strip().partition(":")
    if (kind, colon) != ("txid", ":"):
        return parse_place(text)
    try:
        return Txid(int(number))
    except ValueError:
        raise typer.BadParameter(f"{text!r}: a transaction id is an integer, like txid:42") from None


def parse_end(text: str) -> Literal["latest"] | Offset | datetime:
    """Return the place, exclusive, at which to stop: as `parse_place`; ``end`` is what is committed now.

    Raises:
        typer.BadParameter: none of these, or ``earliest``, before which there is nothing to read.
    """
    place = parse_place("latest" if text.strip() == "end" else text)
    if place == "earliest":
        raise typer.BadParameter("earliest is before every record")
    return place
