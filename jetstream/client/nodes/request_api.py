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

from envelope.errors import (
    ConnectionLost,
    DeadlinePassed,
    NoResponders,
    RemoteProtocolError,
    RequestError,
    Unauthorized,
)
from jetstream.client.nodes.denials import Denial
from jetstream.client.nodes.nats_seam import RunParser, is_cancelled, no_lost_cancellation
from jetstream.client.nodes.socket_access import Address
from metadata.api.group_responses import ListGroupsResponse
from metadata.api.namespace_responses import ListNamespacesResponse
from metadata.api.responses import (
    ClusterInfo,
    ListCursorsResponse,
    ListStreamsResponse,
    PartitionedStreamInfo,
    StreamInfo,
)
from metadata.api.subjects import TICKETS, request_subject
from metadata.api.wire import decode_response

_Model = TypeVar("_Model", bound=BaseModel)
_Page = TypeVar("_Page", ListStreamsResponse, ListCursorsResponse, ListGroupsResponse, ListNamespacesResponse)
_Item = TypeVar("_Item")

QUESTIONS: Final = frozenset(
    {
        *("stream.info", "stream.publishers", "stream.list", "stream.lookup", "cluster.info"),
        *("cursor.get", "cursor.list", "group.list", "group.info"),
        *TICKETS,
        *("namespace.info", "namespace.list"),
    }
)
"""Requests that change nothing."""
ASK_AGAIN_SECONDS: Final = 0.5
"""A question that nobody has answered for so long is asked again: NATS gives it to one of those who listen,
and one that stands still listens."""
_NO_RESPONDERS: Final = "503"
"""NATS's own answer where nobody listens: a status without a payload."""


class _Question:
    """A request that waits for its answer, or for NATS to say that there can be none.

    Attributes:
        subject: of the request.
        limit: of the wait; it ends early when NATS has denied something.
        denial: what that was.
        is_sent: the request itself may have gone out.
    """

    def __init__(self, subject: str, inbox: str, seconds: float) -> None:
        self.subject = subject
        self.limit = asyncio.timeout(seconds)
        self.denial: Denial | None = None
        self.is_sent = False
        self._inbox = inbox

    def on_denial(self, denial: Denial) -> None:
        """Give up if it is about this request, or about the answer to it."""
        if denial.subject == (self.subject if denial.is_publish else self._inbox):
            self.denial = self.denial or denial
            if not self.limit.expired():
                self.limit.reschedule(asyncio.get_running_loop().time())

    async def answer(self, connection: NatsClient, data: bytes, again_s: float | None) -> Msg:
        """Ask, and again every ``again_s`` seconds, until somebody answers; any of the answers counts.

        Raises:
            NoRespondersError: of nats-py: nobody listens.
            TimeoutError: NATS has denied the subscription to the answer; nothing was sent.
            ConnectionLost: the client was closed.
        """
        answers = await connection.subscribe(self._inbox)
        try:
            while self.denial is None:
                self.is_sent = True
                await connection.publish(self.subject, data, reply=self._inbox)
                try:
                    answer = await answers.next_msg(again_s)
                except nats.errors.TimeoutError:
                    continue
                except asyncio.CancelledError:
                    if is_cancelled():
                        raise
                    raise ConnectionLost("the client was closed before the answer came") from None
                if answer.headers and answer.headers.get("Status") == _NO_RESPONDERS:
                    raise nats.errors.NoRespondersError
                return answer
            raise TimeoutError  # as `limit` is about to: nobody is asked whose answer could not come
        finally:
            with suppress(nats.errors.Error):  # about a connection that has ended meanwhile
                await answers.unsubscribe()


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
        try:
            data = to_json(fields)
        except PydanticSerializationError as error:
            raise RequestError(f"{name}: {error}") from None
        subject = request_subject(name, fields)
        try:
            reply = await self._answered(name, subject, data)
        except (NoResponders, Unauthorized) as refusal:
            # An older node knows no names in subjects, and older rights are about subjects without names.
            if subject == name or name in TICKETS:
                raise
            try:
                reply = await self._answered(name, name, data)
            except (NoResponders, Unauthorized):
                raise refusal from None
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

    async def _answered(self, name: str, suffix: str, data: bytes) -> Msg:
        """Ask, a question until somebody answers; an answer to an earlier asking counts.

        Raises:
            JetstreamError: there is no answer, as `ask` says.
        """
        question = _Question(f"{self._prefix}.{suffix}", self._nats.new_inbox(), self._timeout)
        again_s = ASK_AGAIN_SECONDS if name in QUESTIONS else None
        try:
            with no_lost_cancellation(), RunParser.of(self._nats).denials.notifying(question.on_denial):
                async with question.limit:
                    return await question.answer(self._nats, data, again_s)
        except nats.errors.NoRespondersError:
            raise NoResponders(f"no node answers {question.subject}") from None
        except (nats.errors.TimeoutError, TimeoutError):
            if question.denial is None:
                raise DeadlinePassed(f"no answer to {name} in {self._timeout:g} s") from None
            text = question.denial.text
            if question.denial.is_publish or not question.is_sent:
                raise Unauthorized(text) from None
            raise DeadlinePassed(
                f"{name}: whether it was done is unknown, no answer can come: {text}"
            ) from None
        except nats.errors.Error as error:
            raise ConnectionLost(f"NATS: {error}") from error

    async def stream_info(self, name: str) -> StreamInfo | PartitionedStreamInfo:
        """Return a stream's configuration and state; of a partitioned one its partitions."""
        return await self.ask("stream.info", {"name": name}, StreamInfo, PartitionedStreamInfo)

    async def cluster_info(self) -> ClusterInfo:
        """Return the nodes and how to reach them."""
        return await self.ask("cluster.info", {}, ClusterInfo)

    async def addresses(self) -> Sequence[Address]:
        """Return the nodes' sockets, as an `AddressBook`."""
        return [(node.host, node.port) for node in (await self.cluster_info()).nodes]
