"""What the HTTP port answers: probes and metrics, from the first moment of a start to the last of a stop."""

import json
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Final

from jetstream.node.exposition import CONTENT_TYPE, exposition
from jetstream.node.health import Health, judge
from jetstream.node.http_server import Page
from jetstream.node.metric_sources import Sources

Pages = Mapping[str, Callable[[], Awaitable[Page]]]

_JSON: Final = "application/json"
_TEXT: Final = "text/plain; charset=utf-8"
_SEARCHING: Final = Health(("the node is starting: it has not found its cluster yet",))


async def _livez() -> Page:
    return Page(HTTPStatus.OK, _TEXT, b"alive\n")


def searching_pages() -> Pages:
    """Return the pages of a node that knows no voters yet: alive, not ready, with nothing to measure."""

    async def healthz() -> Page:
        return _health(_SEARCHING)

    async def metrics() -> Page:
        return Page(HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, f"{_SEARCHING.problems[0]}\n".encode())

    return {"/healthz": healthz, "/livez": _livez, "/metrics": metrics}


def node_pages(
    sources: Sources, is_ready: Callable[[], bool], metadata_problem: Callable[[], str | None]
) -> Pages:
    """Return the pages of a node whose parts are there, started or not."""
    write_metrics = exposition(sources)

    async def healthz() -> Page:
        lost = [link.watch.role for link in sources.links if not link.connected]
        refused = (route for link in sources.links for route in link.refused if route.is_service)
        return _health(
            judge(
                lost,
                (route.problem.description for route in refused if route.problem is not None),
                sources.streams.problems(),
                is_started=is_ready(),
                metadata_problem=metadata_problem(),
            )
        )

    async def metrics() -> Page:
        return Page(HTTPStatus.OK, CONTENT_TYPE, await write_metrics())

    return {"/healthz": healthz, "/livez": _livez, "/metrics": metrics}


def _health(health: Health) -> Page:
    status = HTTPStatus.OK if health.ready else HTTPStatus.SERVICE_UNAVAILABLE
    return Page(status, _JSON, json.dumps(health.document()).encode() + b"\n")
