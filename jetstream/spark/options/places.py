"""The beginning and the end of a query in its streams, as its options name them; pure."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, NoReturn

from envelope.spark_errors import InvalidOption
from jetstream.protocol.request_base import INTEGER_MAX

EARLIEST: Final = -2
"""Kafka's number for the log start offset."""
LATEST: Final = -1
"""Kafka's number for the high watermark."""

_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class StreamPlace:
    """A place in each stream: an offset, `EARLIEST`, `LATEST`, or a moment in microseconds since 1970 UTC."""

    option: str
    """The option that names the place."""
    everywhere: int | None = None
    """In all streams; None: ``streams`` names each."""
    streams: Mapping[str, int] = field(default_factory=dict)
    is_moment: bool = False

    def of_each(self, streams: Iterable[str]) -> dict[str, int]:
        """Return the place in each of ``streams``, which are all that the query reads.

        A stream without partitions may be named as if it had one, as in ``{"orders": {"0": 23}}``.

        Raises:
            InvalidOption: not exactly these streams are named.
        """
        wanted = sorted(streams)
        if self.everywhere is not None:
            return dict.fromkeys(wanted, self.everywhere)
        names = {stream: stream if stream in self.streams else f"{stream}/0" for stream in wanted}
        missing = sorted(stream for stream, name in names.items() if name not in self.streams)
        unknown = sorted(self.streams.keys() - names.values())
        if missing or unknown:
            self._refuse(wanted, missing, unknown)
        return {stream: self.streams[name] for stream, name in names.items()}

    def _refuse(self, streams: list[str], missing: list[str], unknown: list[str]) -> NoReturn:
        problems = [f"{', '.join(missing)} is not named"] if missing else []
        problems += [f"{', '.join(unknown)} is not read"] if unknown else []
        raise InvalidOption(
            f"{self.option}: {'; '.join(problems)}: name each stream that is read, "
            f"{', '.join(streams) or 'of which there is none'}"
        )


def place_at_offsets(option: str, text: str) -> StreamPlace:
    """Return the place that ``earliest``, ``latest``, or JSON with an offset for each stream means.

    Raises:
        InvalidOption: it is none of these.
    """
    word = text.strip().lower()
    if word in _WORDS:
        return StreamPlace(option, everywhere=_WORDS[word])
    example = '{"orders": 23} or {"orders": {"0": 23, "1": -2}}, -2 for earliest, -1 for latest'
    named = _named_in_json(option, text, f"earliest, latest, or JSON: {example}")
    return StreamPlace(
        option, streams={name: _checked_offset(option, name, value) for name, value in named.items()}
    )


def place_at_moments(option: str, text: str) -> StreamPlace:
    """Return the place that JSON with a moment for each stream means.

    Raises:
        InvalidOption: it is none.
    """
    named = _named_in_json(
        option, text, 'JSON: {"orders": 1795235816000} or {"orders": {"0": 1795235816000}}'
    )
    moments = {name: _moment_us(f"{option}: {name}", value) for name, value in named.items()}
    return StreamPlace(option, streams=moments, is_moment=True)


def place_at_moment(option: str, text: str) -> StreamPlace:
    """Return the moment that is meant in all streams.

    Raises:
        InvalidOption: it is none.
    """
    return StreamPlace(option, everywhere=_moment_us(option, text), is_moment=True)


def _named_in_json(option: str, text: str, expected: str) -> dict[str, object]:
    """Return the values in ``text`` by the names of streams, partitions as ``orders/2``."""
    named: dict[str, object] = {}
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        told = None
    if not isinstance(told, dict) or {} in (told, *told.values()):
        raise InvalidOption(f"{option}: {text!r}: {expected}")
    for stream, value in told.items():
        partitions = value if isinstance(value, dict) else {None: value}
        for partition, place in partitions.items():
            name = stream if partition is None else f"{stream}/{_partition(option, stream, partition)}"
            if name in named:
                raise InvalidOption(f"{option}: {name} is named twice")
            named[name] = place
    return named


def _partition(option: str, stream: str, number: str) -> int:
    if not (number.isascii() and number.isdigit() and len(number) < 10):
        raise InvalidOption(f"{option}: {stream}: {number!r} is not the number of a partition")
    return int(number)


def _checked_offset(option: str, name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not EARLIEST <= value <= INTEGER_MAX:
        raise InvalidOption(f"{option}: {name}: {value!r}: an offset, -2 for earliest or -1 for latest")
    return value


def _moment_us(what: str, value: object) -> int:
    """Return microseconds: of milliseconds since 1970, as Kafka has them, or of ISO 8601."""
    if isinstance(value, str) and _INTEGER.fullmatch(value.strip()):
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= INTEGER_MAX // 1000:
        return value * 1000
    try:
        moment = datetime.fromisoformat(value.strip()) if isinstance(value, str) else None
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidOption(
            f"{what}: {value!r}: milliseconds since 1970 UTC, or ISO 8601 with a zone: 2026-11-23T09:00Z"
        )
    return round(moment.timestamp() * 1_000_000)
