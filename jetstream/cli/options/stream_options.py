"""The settings of a stream as options of ``stream create`` and ``stream update``.

Name, type, least value and default of an option are those that `metadata.stream_config` declares; its help,
and its place in the list of options, is here.
"""

from dataclasses import dataclass
from datetime import timedelta
from inspect import Parameter, Signature
from typing import Annotated, Any, ClassVar, Final, get_type_hints

import typer

from jetstream.cli.options.quantities import parse_duration, parse_label, parse_size
from metadata.stream_config import Retention, StreamConfig

_NO_LIMIT: Final = "0: no limit"

_HELP: Final = {
    "replicas": "Copies of the log, on as many nodes (default: the cluster's).",
    "min_insync_replicas": "Copies that must hold a record before its ack (default: a majority).",
    "ack": "When a publisher is answered (default {}).",
    "read_replicas": "More copies that only serve reads (default {}).",
    "unclean_election": (
        "If all in sync are dead, let another replica lead: acked records may be lost (default {})."
    ),
    "read_only": "Refuse messages; what is stored is read, and goes, as ever (default {}).",
    "sync": "When bytes are forced to disk (default {}).",
    "sync_interval": "With --sync interval: how often (default {}).",
    "compression": "Of stored batches (default {}).",
    "segment_bytes": "A segment file is closed at this size (default {}, or a quarter of the bytes kept).",
    "segment_age": f"… and at this age ({_NO_LIMIT}).",
    "record_bytes_max": "Larger messages are refused (default {}).",
    "retention_age": f"Old segments go after this time ({_NO_LIMIT}).",
    "retention_bytes": f"… beyond this size ({_NO_LIMIT}).",
    "retention_messages": f"… beyond this many records ({_NO_LIMIT}).",
    "tier": "Copy closed segment files to the nodes' object store (default {}).",
    "local_retention": f"With --tier: copies leave the disks then ({_NO_LIMIT}).",
    "local_retention_bytes": f"… beyond this size ({_NO_LIMIT}).",
    "compact": "key: keep only the last record of each key (default {}).",
    "compact_dirty_ratio": "… once so much of it has not been (default {}).",
    "compact_age_max": "… and at this age (default {}).",
    "tombstone_retention": "How long tombstones stay after that (default {}).",
    "rewrite_after": "Small batches are merged at this age (default {}; 0: never).",
    "dedupe_window": "How long message ids are remembered (default {}; 0: not).",
    "dedupe_ids_max": "… and how many of them (default {}).",
    "session_window": "A publisher's session is kept so long when idle (default {}).",
    "txid_max_step": f"A txid further above the last one is refused ({_NO_LIMIT}).",
    "group": "Share the subject with the streams of this group.",
    "partitions": "So many streams, NAME/0 and so on, share the messages (default: one).",
    "partition_by": "… by their key, their subject, or as NATS deals them out.",
    "labels": "For people and tools; repeatable.",
}
_LIMITS: Final = {name for name, text in _HELP.items() if _NO_LIMIT in text}
"""Options whose zero is null in a configuration."""

_RETENTION: Final = {f"retention_{name}": name for name in Retention.model_fields}
_TYPES: Final = get_type_hints(StreamConfig) | {
    option: get_type_hints(Retention)[name] for option, name in _RETENTION.items()
}
_SCHEMA: Final = StreamConfig.model_json_schema()["properties"]
_UNITS: Final = {"d": timedelta(days=1), "h": timedelta(hours=1), "m": timedelta(minutes=1)}


def _default_text(name: str) -> str:
    match StreamConfig.model_fields[name].default:
        case bool(default):
            return "yes" if default else "no"
        case int(default) if default >= 1 << 20:
            return f"{default >> 20}MiB"
        case timedelta() as default:
            whole = (f"{default // unit}{letter}" for letter, unit in _UNITS.items() if not default % unit)
            return next(whole, f"{default.total_seconds():g}s")
        case default:
            return str(default)


def _least(name: str) -> int | None:
    """Return the smallest number that typer lets pass; None: any."""
    if name in _LIMITS:
        return 0
    schema = _SCHEMA[name]
    least: int | None = schema.get("anyOf", [schema])[0].get("minimum")
    return least


def _parameter(name: str) -> Parameter:
    type_, flag, help_text = _TYPES[name], "--" + name.replace("_", "-"), _HELP[name]
    if "{}" in help_text:
        help_text = help_text.format(_default_text(name))
    if name == "labels":
        type_, option = list[str], typer.Option("--label", metavar="KEY=VALUE", help=help_text)
    elif type_ is bool:
        option = typer.Option(f"{flag}/--no-{flag[2:]}", help=help_text, show_default=False)
    elif "bytes" in name:
        option = typer.Option(flag, parser=parse_size, metavar="SIZE", help=help_text, show_default=False)
    elif type_ in (timedelta, timedelta | None):
        option = typer.Option(
            flag, parser=parse_duration, metavar="DURATION", help=help_text, show_default=False
        )
    else:
        option = typer.Option(flag, min=_least(name), help=help_text)
    return Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[type_ | None, option])


@dataclass(frozen=True, slots=True, init=False)
class StreamOptions:
    """The options that are given; a setting without one stays as it is, or at its default."""

    values: dict[str, Any]

    __signature__: ClassVar = Signature([_parameter(name) for name in _HELP])
    """What `expanded` shows typer."""

    def __init__(self, **values: Any) -> None:  # noqa: ANN401  # typer has parsed them to the declared types
        object.__setattr__(
            self, "values", {name: value for name, value in values.items() if value is not None}
        )

    def patch(self) -> dict[str, Any]:
        """Return what is given as keys of a stream's configuration; None removes a limit.

        Raises:
            typer.BadParameter: a label without a ``=``.
        """
        patch = {name: value or None if name in _LIMITS else value for name, value in self.values.items()}
        if labels := patch.pop("labels", None):
            patch["labels"] = dict(parse_label(label) for label in labels)
        if retention := {_RETENTION[name]: patch.pop(name) for name in _RETENTION if name in patch}:
            patch["retention"] = retention
        return patch
