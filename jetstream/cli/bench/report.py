"""The result of a measurement, for people and for machines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from jetstream.cli.output.console import print_properties, print_table

_PER_MILLE: Final = {"p50": 500, "p99": 990, "p99_9": 999, "max": 1000}


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReport:
    """A measurement; a message is a record where it was read."""

    bench: str
    stream: str
    start_offset: int | None
    """First offset that was stored or read; None if there was none."""
    end_offset: int | None
    """After the last one; others may have published in between."""
    messages: int
    value_bytes: int
    seconds: float
    """From the first message to the last ack or record."""
    cpu_seconds: float
    """Of this process in that time, all threads."""
    latency_seconds: Mapping[str, Sequence[float]]
    """Every sample, by what was waited for."""

    def for_machines(self) -> dict[str, object]:
        """Return the report as one JSON document; times of an empty measurement are null."""
        return {
            "bench": self.bench,
            "stream": self.stream,
            "start_offset": self.start_offset,
            "end_offset": self.end_offset,
            "messages": self.messages,
            "value_bytes": self.value_bytes,
            "seconds": self.seconds,
            "messages_per_second": self._per_second(self.messages),
            "megabytes_per_second": self._per_second(self.value_bytes / 1e6),
            "cpu_us_per_message": self.cpu_seconds * 1e6 / self.messages if self.messages else None,
            "latency_ms": {
                name: {"samples": len(samples), **latencies_ms(samples)} if samples else None
                for name, samples in self.latency_seconds.items()
            },
        }

    def show(self) -> None:
        """Print it for people: the same numbers."""
        figures = self.for_machines()
        shown = {
            name.replace("_", " "): _rounded(value)
            for name, value in figures.items()
            if name not in ("bench", "stream", "latency_ms")
        }
        print_properties(f"{self.bench} {self.stream}", shown)
        rows = [
            (name, len(samples), *(f"{latency:.3f}" for latency in latencies_ms(samples).values()))
            for name, samples in self.latency_seconds.items()
            if samples
        ]
        print_table("latency in ms", ("of", "samples", "p50", "p99", "p99.9", "max"), rows)

    def _per_second(self, amount: float) -> float | None:
        return amount / self.seconds if self.seconds else None


def latencies_ms(seconds: Sequence[float]) -> dict[str, float]:
    """Return percentiles in milliseconds by nearest rank: each is one of the samples, at least one."""
    ordered = np.sort(np.asarray(seconds)) * 1000
    ranks = {name: -(-len(ordered) * per_mille // 1000) for name, per_mille in _PER_MILLE.items()}
    return {name: float(ordered[rank - 1]) for name, rank in ranks.items()}


def _rounded(value: object) -> object:
    return f"{value:,.2f}" if isinstance(value, float) else value
