"""The request API over NATS: one request and its response."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

import nats.errors
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg
from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_json

from envelope.errors import ConnectionLost, DeadlinePassed, NoResponders, RemoteProtocolError, RequestError
from jetstream.client.nodes.node_links import Address
from metadata.api.group_responses import ListGroupsResponse
from metadata.api.responses import (
    ClusterInfo,
    ListCursorsResponse,
    ListStreamsResponse,
    PartitionedStreamInfo,
    StreamInfo,
)
from metadata.api.wire import decode_response

_Model = TypeVar("_Model", bound=BaseModel)
_Page = TypeVar("_Page", ListStreamsResponse, ListCursorsResponse, ListGroupsResponse)
_Item = TypeVar("_Item")

QUESTIONS: Final = frozenset(
    {
        *("stream.info", "stream.list", "stream.lookup", "cluster.info"),
        *("cursor.get", "cursor.list", "group.list", "group.info"),
    }
)
"""Requests that change nothing."""
ASK_AGAIN_SECONDS: Final = 0.5
"""A question that nobody has answered for so long is asked again: NATS gives it to one of those who listen,
and one that stands still listens."""
_NO_RESPONDERS: Final = "503"
"""NATS's own answer where nobody listens: a status without a payload."""


class NatsRequests:
    """Requests and responses of the API, over NATS."""

    def __init__(self, nats_client: NatsClient, prefix: str, timeout: float) -> None:
        """``timeout``: seconds for each request."""
        self._nats = nats_client
        self._prefix = prefix
        self._timeout = timeout

    @property
    def prefix(self) -> str:
        """Of the subjects of the request API."""
        return self._prefix

    async def ask(self, name: str, fields: dict[str, object], *models: type[_Model]) -> _Model:
        """Send one request and return its response: the first of ``models`` that it fits.

        A question is asked again if it stays without an answer.

        Raises:
            NoResponders: no node is attached to NATS.
            DeadlinePassed: no answer in time; the outcome is unknown.
            JetstreamError: the node's refusal.
        """
        subject = f"{self._prefix}.{name}"
        try:
            data = to_json(fields)
            if name in QUESTIONS:
                reply = await self._answered(subject, data)
            else:
                reply = await self._nats.request(subject, data, timeout=self._timeout)
        except PydanticSerializationError as error:
            raise RequestError(f"{name}: {error}") from None
        except nats.errors.NoRespondersError:
            raise NoResponders(f"no node answers {subject}") from None
        except (nats.errors.TimeoutError, TimeoutError):
            raise DeadlinePassed(f"no answer to {name} in {self._timeout:g} s") from None
        except nats.errors.Error as error:
            raise ConnectionLost(f"NATS: {error}") from error
        *others, last = models
        for model in others:
            with suppress(RemoteProtocolError):
                return decode_response(model, reply.data)
        return decode_response(last, reply.data)

    async def paged(
        self,
        name: str,
        fields: dict[str, object],
        model: type[_Page],
        items_of: Callable[[_Page], list[_Item]],
    ) -> list[_Item]:
        """Ask for page after page of a list, and return the items of all; raises what `ask` raises."""
        items: list[_Item] = []
        while True:
            page = await self.ask(name, {**fields, "offset": len(items)}, model)
            items += items_of(page)
            if not items_of(page) or len(items) >= page.total:
                return items

    async def _answered(self, subject: str, data: bytes) -> Msg:
        """Ask until somebody answers; an answer to an earlier asking counts."""
        inbox = self._nats.new_inbox()
        answers = await self._nats.subscribe(inbox)
        try:
            async with asyncio.timeout(self._timeout):
                while True:
                    await self._nats.publish(subject, data, reply=inbox)
                    try:
                        answer = await answers.next_msg(ASK_AGAIN_SECONDS)
                    except nats.errors.TimeoutError:
                        continue
                    if answer.headers and answer.headers.get("Status") == _NO_RESPONDERS:
                        raise nats.errors.NoRespondersError
                    return answer
        finally:
            await answers.unsubscribe()

    async def stream_info(self, name: str) -> StreamInfo | PartitionedStreamInfo:
        """Return a stream's configuration and state; of a partitioned one its partitions."""
        return await self.ask("stream.info", {"name": name}, StreamInfo, PartitionedStreamInfo)

    async def cluster_info(self) -> ClusterInfo:
        """Return the nodes and how to reach them."""
        return await self.ask("cluster.info", {}, ClusterInfo)

    async def addresses(self) -> Sequence[Address]:
        """Return the nodes' sockets, as an `AddressBook`."""
        return [(node.host, node.port) for node in (await self.cluster_info()).nodes]
