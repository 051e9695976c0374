"""The requests about namespaces: set their limits, and look at what they use."""

import logging
from collections.abc import Awaitable, Callable
from typing import Final, assert_never

from envelope.errors import InternalError
from metadata.api.namespace_responses import ListNamespacesResponse, NamespaceInfo, ReportedLimits
from metadata.api.requests import (
    LimitNamespaceRequest,
    ListNamespacesRequest,
    NamespaceInfoRequest,
    NamespaceRequest,
)
from metadata.api.response_base import fitting_page
from metadata.catalog.catalog import Catalog
from metadata.catalog.commands import Command, LimitNamespace
from metadata.catalog.events import Event, NamespaceLimited
from metadata.namespaces import EVERYWHERE, NamespaceLimits, NamespaceTable

_log: Final = logging.getLogger(__name__)


async def answer_about_namespaces(
    request: NamespaceRequest, catalog: Catalog, propose: Callable[[Command], Awaitable[Event]]
) -> NamespaceInfo | ListNamespacesResponse:
    """Do what ``request`` asks; limits are durable on return.

    Raises:
        RetentionBytesRequired: bytes are to be limited, and a stream there has no ``retention.bytes``.
        LimitReached: no more namespaces can have limits.
    """
    match request:
        case LimitNamespaceRequest(namespace=name):
            event = await propose(LimitNamespace(name, request.changes))
            if not isinstance(event, NamespaceLimited):
                raise InternalError(f"a limit answered by {type(event).__name__}")
            shown = event.limits.model_dump(mode="json", exclude_none=True)
            _log.info("namespace limited namespace=%s limits=%s", name or "(all)", shown)
            return _info(catalog.namespaces, name, event.limits)
        case NamespaceInfoRequest(name=name):
            return _of(catalog.namespaces, EVERYWHERE if name is None else name)
        case ListNamespacesRequest():
            return _listed(request, catalog.namespaces)
        case _:
            assert_never(request)


def _listed(request: ListNamespacesRequest, namespaces: NamespaceTable) -> ListNamespacesResponse:
    limited = [row.name for row in namespaces.limited()]
    names = set(limited if request.limited else (*limited, *namespaces.uses.names()))
    matching = sorted(name for name in names if name.startswith(request.prefix or ""))
    page = fitting_page((_of(namespaces, name) for name in matching[request.offset :]), request.limit)
    return ListNamespacesResponse(namespaces=page, total=len(matching), offset=request.offset)


def _of(namespaces: NamespaceTable, name: str) -> NamespaceInfo:
    return _info(namespaces, name, namespaces.limits_of(name))


def _info(namespaces: NamespaceTable, name: str, limits: NamespaceLimits) -> NamespaceInfo:
    use = namespaces.uses.of(name)
    return NamespaceInfo(
        name=name or None,
        streams=use.streams,
        bytes=use.bytes,
        limits=ReportedLimits.model_validate(dict(limits)),
    )
