"""Options that pipelines share, and the file that may hold them.

The file has the options' own names: ``--config`` makes its values the defaults, so that what is on the
command line or in the environment wins. Options that are given several times are lists or tables there.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from jetstream.cli.options.nats_options import NatsOptions
from jetstream.cli.options.quantities import parse_duration
from jetstream.cli.options.socket_options import SocketOptions
from jetstream.cli.program.completion import stream_names
from jetstream.spark.pipelines.settings import QuerySettings

RUN_PANEL: Final = "How it runs"
MASTER_DEFAULT: Final = "local[*]"

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")

SPARK_DEFAULTS: Final[Mapping[str, str]] = {
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|nkeyseed|credentials|servers",
}
"""What suits micro-batches, and what of our options is secret; ``--conf`` wins.

An aggregate keeps its number of partitions for life.
"""


def config_from_file(context: typer.Context, path: Path | None) -> Path | None:
    """Make the values of a TOML file the defaults of the command's options.

    Raises:
        typer.BadParameter: it is not TOML, or has a key that is no option.
    """
    if path is None:
        return None
    try:
        given = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise typer.BadParameter(f"{path}: {error}") from None
    parameters = {_longest(parameter.opts): parameter for parameter in context.command.params}
    values: dict[str, Any] = {}
    for key, value in given.items():
        parameter = parameters.get(key)
        if parameter is None or key in ("config", "help"):
            near = get_close_matches(key, parameters, n=1)
            raise typer.BadParameter(f"{path}: there is no option {key}{f': {near[0]}?' if near else ''}")
        assert parameter.name is not None, "an option has a name"
        values[parameter.name] = option_value(f"{path}: {key}", value, is_many=_is_many(parameter))
    context.default_map = {**(context.default_map or {}), **values}
    return path


def option_value(what: str, value: object, *, is_many: bool) -> bool | str | list[str]:
    """Return a value of TOML as it would be typed; a table as the pairs of an option like ``--conf``.

    Raises:
        typer.BadParameter: it has several values, and the option has one, or the other way round.
    """
    match value:
        case dict() if is_many:
            return [f"{name}={_text(what, each)}" for name, each in value.items()]
        case list() if is_many:
            return [_text(what, each) for each in value]
        case bool() if not is_many:
            return value
        case _ if not is_many:
            return _text(what, value)
        case _:
            raise typer.BadParameter(f"{what} takes a list or a table")


def _text(what: str, value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str() | int() | float():
            return str(value)
        case date():
            return value.isoformat()
        case _:
            raise typer.BadParameter(f"{what} takes no list and no table here")


def _longest(names: Sequence[str]) -> str:
    return max(names, key=len).lstrip("-")


def _is_many(parameter: Any) -> bool:  # noqa: ANN401  # typer has click's classes inside
    return bool(getattr(parameter, "multiple", False))


def pairs_of(option: str, texts: Sequence[str] | None) -> dict[str, str]:
    """Return what an option like ``--conf NAME=VALUE`` was given.

    Raises:
        typer.BadParameter: no equals sign, or one name twice.
    """
    found: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name.strip() or name.strip() in found:
            raise typer.BadParameter(f"{option} {name}: NAME=VALUE, each name once")
        found[name.strip()] = value.strip()
    return found


def _run_option(*names: str, **more: Any) -> Any:  # noqa: ANN401  # typer.Option's own type
    return typer.Option(*names, rich_help_panel=RUN_PANEL, **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSource:
    """Which stream is read, and how."""

    stream: Annotated[
        str, typer.Option("--stream", metavar="NAME", help="Stream to read.", autocompletion=stream_names)
    ]
    max_records: Annotated[
        int, typer.Option("--max-records", min=1, metavar="N", help="Of one micro-batch, at most.")
    ] = 1_000_000
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="NAME=VALUE", help="Option of the Spark source; repeatable."),
    ] = None

    def options(self, nats: NatsOptions, socket: SocketOptions) -> dict[str, str]:
        """Return the options of our source; it begins with the first record, unless ``--option`` says more.

        Raises:
            typer.BadParameter: an option that is none.
        """
        given = pairs_of("--option", self.option)
        begins = any(name.lower().startswith("starting") for name in given)
        start = {} if begins else {"startingOffsets": "earliest"}
        own = {"stream": self.stream, "maxOffsetsPerTrigger": str(self.max_records)}
        return {**access_options(nats, socket), **own, **start, **given}


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkOptions:
    """The options of the Spark session."""

    config: Annotated[
        Path | None,
        _run_option(
            "--config",
            metavar="FILE",
            exists=True,
            dir_okay=False,
            is_eager=True,
            callback=config_from_file,
            help="TOML with these options by their names; the command line and the environment win.",
        ),
    ] = None
    master: Annotated[
        str, _run_option("--master", metavar="URL", help="Spark's master; by default this machine.")
    ] = MASTER_DEFAULT
    conf: Annotated[
        list[str] | None, _run_option("--conf", metavar="NAME=VALUE", help="Setting of Spark; repeatable.")
    ] = None
    spark_log: Annotated[
        str,
        _run_option("--spark-log", metavar="LEVEL", help="What Spark itself logs: off, error, warn, info."),
    ] = "off"

    def spark_settings(self) -> dict[str, str]:
        """Return Spark's settings.

        Raises:
            typer.BadParameter: one that is none.
        """
        return {**SPARK_DEFAULTS, **pairs_of("--conf", self.conf)}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryOptions(SparkOptions):
    """How a streaming query runs."""

    checkpoint: Annotated[
        str,
        _run_option(
            "--checkpoint", metavar="DIR", help="Where Spark keeps how far it is; goes with the result."
        ),
    ]
    once: Annotated[
        bool,
        _run_option("--once/--continuous", help="End with what is committed now, or go on until stopped."),
    ] = False
    every: Annotated[
        str, _run_option("--every", metavar="DURATION", help="From one micro-batch to the next; 0: at once.")
    ] = "10s"

    def query_settings(self) -> QuerySettings:
        """Return them as a pipeline's settings.

        Raises:
            typer.BadParameter: no duration.
        """
        every_s = parse_duration(self.every).total_seconds()
        return QuerySettings(checkpoint=self.checkpoint, once=self.once, every_s=every_s)


def absolute_place(place: str) -> str:
    """Return a URI as it is, and the path of a local directory from the root on."""
    return place if _SCHEME.match(place) else str(Path(place).absolute())


def access_options(nats: NatsOptions, socket: SocketOptions) -> dict[str, str]:
    """Return how to reach the cluster, as options of our source and sink.

    Raises:
        typer.BadParameter: options that contradict each other, or that executors could not use.
    """
    nats.checked()
    if nats.tls_cert is not None or socket.socket_tls_cert is not None:
        raise typer.BadParameter("Spark has no way to show a certificate of its own: leave out --…tls-cert")
    is_tls = socket.socket_tls or socket.socket_tls_ca is not None
    given: dict[str, str | Path | None] = {
        "servers": ",".join(nats.urls),
        "nats.user": nats.user,
        "nats.password": nats.password,
        "nats.token": nats.token,
        "nats.credentials": nats.creds,
        "nats.nkeySeed": None if nats.nkey is None else nats.nkey.read_text().strip(),
        "nats.tls.ca": nats.tls_ca,
        "nats.inboxPrefix": nats.inbox_prefix,
        "token": socket.socket_token,
        "tls.ca": (socket.socket_tls_ca or "system") if is_tls else None,
    }
    return {name: str(value) for name, value in given.items() if value is not None}
