"""Events and reports in a few words, for the trace."""

import dataclasses

from jetstream.replica import follower_events as following
from jetstream.replica import leader_events as leading
from jetstream.replica.reconcile import LogState
from tests.simulation.replica.writer import Report


def event_text(event: leading.Event | following.Event | Report) -> str:
    """Return what a machine is told."""
    fields = [
        f"{field.name}={_short(getattr(event, field.name))}"
        for field in dataclasses.fields(event)
        if field.repr
    ]
    return " ".join([type(event).__name__, *fields])


def _short(value: object) -> str:
    if isinstance(value, LogState):
        starts = " ".join(f"e{start.epoch}@{start.start}" for start in value.epochs.starts)
        return f"[{value.log_start_offset} {value.synced_end} {value.log_end_offset} {starts}]"
    if isinstance(value, tuple):
        return "[" + " ".join(map(_short, value)) + "]"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = (_short(getattr(value, field.name)) for field in dataclasses.fields(value) if field.repr)
        return f"{type(value).__name__}({' '.join(fields)})"
    return str(value)
