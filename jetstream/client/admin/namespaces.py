"""Namespaces for their operators: limits and use."""

from jetstream.client.nodes.request_api import NatsRequests
from metadata.api.namespace_responses import ListNamespacesResponse, NamespaceInfo


class Namespaces:
    """The namespaces of a cluster. Every method raises what `NatsRequests.ask` raises."""

    def __init__(self, requests: NatsRequests) -> None:
        self._requests = requests

    async def limit(self, name: str | None, /, **changes: object) -> NamespaceInfo:
        """Change limits of a namespace, and return what it has then; durable on return.

        Args:
            name: such as ``shop``, for the streams that begin with ``shop/``; None: for all streams.
            changes: fields of `metadata.namespaces.NamespaceLimits`: ``streams``, ``bytes``,
                ``creations_per_minute``, ``subjects``. Those that are not named stay; None takes one away.

        Raises:
            RetentionBytesRequired: ``bytes`` are to be limited, and a stream has no ``retention.bytes``.
            LimitReached: no more namespaces can have limits.
        """
        fields: dict[str, object] = {"name": name, **changes}
        return await self._requests.ask("namespace.limit", fields, NamespaceInfo)

    async def info(self, name: str | None = None) -> NamespaceInfo:
        """Return the limits and the use of a namespace, or of the whole cluster."""
        return await self._requests.ask("namespace.info", {"name": name}, NamespaceInfo)

    async def list(self, prefix: str | None = None, *, limited: bool = False) -> "list[NamespaceInfo]":
        """Return the namespaces that have streams or limits, in the order of their names.

        Args:
            prefix: only names that begin so; otherwise the first is that of the whole cluster.
            limited: only those that have limits.
        """
        fields: dict[str, object] = {"limited": limited}
        if prefix is not None:
            fields["prefix"] = prefix
        return await self._requests.paged(
            "namespace.list", fields, ListNamespacesResponse, lambda page: page.namespaces
        )
