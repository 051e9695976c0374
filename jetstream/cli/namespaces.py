"""``jetstream namespace …``: limit what a namespace may have, and look at what it uses."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

import typer

from jetstream.cli.client_connection import connected
from jetstream.cli.options.nats_options import NatsOptions
from jetstream.cli.options.quantities import parse_size, size_text
from jetstream.cli.output.console import print_json, print_properties, print_table
from jetstream.cli.program.help_text import Json
from metadata.api.namespace_responses import NamespaceInfo
from metadata.namespaces import NamespaceLimits

LIMIT_EXAMPLES: Final = (
    "jetstream namespace limit shop --streams 20 --bytes 100GiB",
    "jetstream namespace limit shop --subject 'shop.>' --subject 'orders.>'",
    "jetstream namespace limit shop --creations-per-minute 10 --remove bytes",
    "jetstream namespace limit --streams 1000",
)
INFO_EXAMPLES: Final = ("jetstream namespace info shop", "jetstream namespace info shop --json | jq .limits")
LIST_NAMESPACES_EXAMPLES: Final = ("jetstream namespace ls", "jetstream namespace ls shop/ --limited")

_NamespaceArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[NAMESPACE]",
        help="Such as shop, for the streams that begin with shop/. Without one: all streams of the cluster.",
    ),
]


class Limit(StrEnum):
    """A limit, as it is called on the command line."""

    STREAMS = "streams"
    BYTES = "bytes"
    CREATIONS_PER_MINUTE = "creations-per-minute"
    SUBJECTS = "subjects"

    @property
    def field(self) -> str:
        """Its name in requests."""
        return self.replace("-", "_")


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitOptions:
    """Limits to set or to take away."""

    streams: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Streams in it; each partition is one.")
    ] = None
    bytes: Annotated[
        int | None,
        typer.Option(
            parser=parse_size,
            metavar="SIZE",
            help="Reserved by its streams: (retention bytes + segment bytes) x copies of each.",
        ),
    ] = None
    creations_per_minute: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Streams created in a minute.")
    ] = None
    subjects: Annotated[
        list[str] | None,
        typer.Option(
            "--subject",
            metavar="PATTERN",
            help="Within which its streams bind theirs; repeatable, all at once.",
        ),
    ] = None
    remove: Annotated[
        list[Limit] | None,
        typer.Option(metavar="LIMIT", help=f"Take one away: {', '.join(Limit)}; repeatable."),
    ] = None

    def changes(self) -> dict[str, object]:
        """Return what is given as fields of a request; None takes a limit away.

        Raises:
            typer.BadParameter: nothing is given, or a limit is set and taken away.
        """
        changes: dict[str, object] = {
            name: value
            for name in NamespaceLimits.model_fields
            if (value := getattr(self, name)) not in (None, [])
        }
        for limit in self.remove or ():
            if limit.field in changes:
                raise typer.BadParameter(f"{limit}: set it or remove it, not both")
        changes |= {limit.field: None for limit in self.remove or ()}
        if not changes:
            raise typer.BadParameter("nothing to change: give at least one option")
        return changes


async def limit(
    nats: NatsOptions, options: LimitOptions, name: _NamespaceArgument = None, as_json: Json = False
) -> None:
    """Limit what the streams of a namespace may be; what is not named stays as it is.

    Streams that are there stay, also above a limit. To limit bytes, every stream there needs retention bytes.
    """
    changes = options.changes()
    async with connected(nats) as client:
        _show(await client.namespaces.limit(name, **changes), as_json)


async def info(nats: NatsOptions, name: _NamespaceArgument = None, as_json: Json = False) -> None:
    """Show the limits of a namespace, and how much of them is taken."""
    async with connected(nats) as client:
        _show(await client.namespaces.info(name), as_json)


async def list_namespaces(
    nats: NatsOptions,
    prefix: Annotated[
        str | None, typer.Argument(metavar="[PREFIX]", help="Only names that begin so.")
    ] = None,
    limited: Annotated[bool, typer.Option("--limited", help="Only those that have limits.")] = False,
    as_json: Json = False,
) -> None:
    """List the namespaces that have streams or limits by name; with --json one object a line."""
    async with connected(nats) as client:
        namespaces = await client.namespaces.list(prefix, limited=limited)
    if as_json:
        for namespace in namespaces:
            print_json(namespace)
        return
    rows = ((_called(namespace), *dict(_properties(namespace)).values()) for namespace in namespaces)
    columns = ("namespace", "streams", "bytes reserved", "creations per minute", "subjects")
    print_table(f"{len(namespaces):,} namespace{'' if len(namespaces) == 1 else 's'}", columns, rows)


def _show(namespace: NamespaceInfo, as_json: bool) -> None:
    if as_json:
        print_json(namespace)
    else:
        print_properties(_called(namespace), dict(_properties(namespace)))


def _properties(namespace: NamespaceInfo) -> Iterator[tuple[str, object]]:
    limits = namespace.limits
    yield "streams", _of(f"{namespace.streams:,}", None if limits.streams is None else f"{limits.streams:,}")
    limit_text = None if limits.bytes is None else size_text(limits.bytes)
    yield "bytes reserved", _of(size_text(namespace.bytes), limit_text)
    yield "creations per minute", limits.creations_per_minute
    yield "subjects", None if limits.subjects is None else ", ".join(limits.subjects)


def _of(used: str, limited: str | None) -> str:
    return used if limited is None else f"{used} of {limited}"


def _called(namespace: NamespaceInfo) -> str:
    return namespace.name or "all streams"
