"""Streams and cluster by the request API: create, change, look at, truncate, delete."""

import asyncio
from collections.abc import Sequence
from typing import Final, TypeVar, overload

import nats.errors
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg
from pydantic import BaseModel, RootModel
from pydantic_core import PydanticSerializationError, to_json

from envelope.errors import ConnectionLost, DeadlinePassed, NoResponders, RequestError
from envelope.partition_errors import StreamIsPartitioned
from jetstream.client.node_links import Address
from metadata.api.responses import (
    ClusterInfo,
    CreatePartitionedStreamResponse,
    CreateStreamResponse,
    DeletePartitionedStreamResponse,
    DeleteStreamResponse,
    ListStreamsResponse,
    LookupStreamsResponse,
    PartitionedStreamInfo,
    StreamInfo,
    StreamSummary,
    TruncateStreamResponse,
    UpdateStreamResponse,
)
from metadata.api.wire import decode_response

_Model = TypeVar("_Model", bound=BaseModel)

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


class _Created(RootModel[CreateStreamResponse | CreatePartitionedStreamResponse]):
    """Of an ordinary stream, or of a partitioned one."""


class _Updated(RootModel[UpdateStreamResponse | PartitionedStreamInfo]):
    """The same."""


class _Deleted(RootModel[DeleteStreamResponse | DeletePartitionedStreamResponse]):
    """The same."""


class _Told(RootModel[StreamInfo | PartitionedStreamInfo]):
    """The same."""


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

    async def ask(self, name: str, fields: dict[str, object], model: type[_Model]) -> _Model:
        """Send one request and return its response; a question is asked again if it stays without an answer.

        Raises:
            NoResponders: no node is attached to NATS.
            DeadlinePassed: no answer in time; what was asked may have been done.
            JetstreamError: what the node answered.
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
        return decode_response(model, reply.data)

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

    async def cluster_info(self) -> ClusterInfo:
        """Return the nodes and how to reach them."""
        return await self.ask("cluster.info", {}, ClusterInfo)

    async def addresses(self) -> Sequence[Address]:
        """Return the nodes' sockets, as an `AddressBook`."""
        return [(node.host, node.port) for node in (await self.cluster_info()).nodes]


class Streams:
    """The streams of a cluster. Every method raises what `NatsRequests.ask` raises."""

    def __init__(self, requests: NatsRequests) -> None:
        self._requests = requests

    @overload
    async def create(
        self, name: str, subject: str, *, partitions: None = None, **config: object
    ) -> CreateStreamResponse: ...

    @overload
    async def create(
        self, name: str, subject: str, *, partitions: int, **config: object
    ) -> CreatePartitionedStreamResponse: ...

    @overload
    async def create(
        self, name: str, subject: str, **config: object
    ) -> CreateStreamResponse | CreatePartitionedStreamResponse: ...

    async def create(
        self, name: str, subject: str, **config: object
    ) -> CreateStreamResponse | CreatePartitionedStreamResponse:
        """Create a stream, or find it if it exists with an equal configuration (`created` tells which).

        With ``partitions=4, partition_by="key"`` it is partitioned: four streams, ``NAME/0`` and so on.

        Args:
            name: unique in the cluster.
            subject: NATS subject or pattern to bind.
            config: `metadata.stream_config.StreamConfig`'s other fields; durations as `datetime.timedelta`,
                seconds or ISO 8601, sizes in bytes.

        Raises:
            StreamExists: the name is taken by a stream with another configuration.
            InvalidName, InvalidSubject, InvalidConfig: something in it cannot be.
        """
        fields: dict[str, object] = {"name": name, "subject": subject, **config}
        return (await self._requests.ask("stream.create", fields, _Created)).root

    async def restore(
        self, name: str, incarnation: str | None = None, replicas: int | None = None
    ) -> CreateStreamResponse:
        """Make a lost stream again from what the nodes' object store has of it.

        Args:
            name: of the stream.
            incarnation: which life of it; None: the newest.
            replicas: copies; None: as many as it had.

        Raises:
            StreamExists: there is a stream of that name.
            UnknownStream: the object store has nothing of it.
            CorruptDataError: objects are missing there.
            RemovalPending: the stream was deleted, and its objects are still to be.
        """
        fields: dict[str, object] = {"name": name, "incarnation": incarnation, "replicas": replicas}
        return await self._requests.ask("stream.restore", fields, CreateStreamResponse)

    async def update(self, name: str, **changes: object) -> UpdateStreamResponse | PartitionedStreamInfo:
        """Change the named fields of a stream's configuration; None puts one back to its default.

        Of a partitioned stream all partitions are changed, and a larger ``partitions`` adds some. If that is
        cut off, the same call does the rest.
        """
        return (await self._requests.ask("stream.update", {"name": name, **changes}, _Updated)).root

    async def delete(self, name: str) -> DeleteStreamResponse | DeletePartitionedStreamResponse:
        """Delete a stream with all its records; a partitioned one with all its partitions."""
        return (await self._requests.ask("stream.delete", {"name": name}, _Deleted)).root

    async def info(self, name: str) -> StreamInfo:
        """Return a stream's configuration and live state.

        Raises:
            UnknownStream: there is none.
            StreamIsPartitioned: it is to be asked of one partition, or `partitions` of all.
        """
        answer = (await self._requests.ask("stream.info", {"name": name}, _Told)).root
        if isinstance(answer, PartitionedStreamInfo):
            raise StreamIsPartitioned(
                f"stream {name!r} is partitioned: look at its partitions", partitions=len(answer.partitions)
            )
        return answer

    async def partitions(self, name: str) -> PartitionedStreamInfo:
        """Return a partitioned stream's configuration and its partitions.

        Raises:
            UnknownStream: there is no stream of that name.
            RequestError: it is not partitioned.
        """
        answer = (await self._requests.ask("stream.info", {"name": name}, _Told)).root
        if isinstance(answer, StreamInfo):
            raise RequestError(f"stream {name!r} is not partitioned")
        return answer

    async def list(self, prefix: str | None = None, *, internal: bool = False) -> "list[StreamSummary]":
        """Return all streams in the order of their names, or those whose name begins with ``prefix``.

        ``internal``: the system's own, whose names begin with ``__``, are among them.
        They come in pages by number, of up to 256: of more, one may be missing or come twice if others are
        deleted or created at this moment.
        """
        found: list[StreamSummary] = []
        while True:
            fields: dict[str, object] = {"offset": len(found), **({"internal": True} if internal else {})}
            if prefix is not None:
                fields["prefix"] = prefix
            page = await self._requests.ask("stream.list", fields, ListStreamsResponse)
            found.extend(page.streams)
            if not page.streams or len(found) >= page.total:
                return found

    async def lookup(self, subject: str) -> "Sequence[StreamSummary]":
        """Return the streams that would store a message on ``subject``."""
        return (
            await self._requests.ask("stream.lookup", {"subject": subject}, LookupStreamsResponse)
        ).streams

    async def truncate(self, name: str, before: int) -> TruncateStreamResponse:
        """Remove all records below offset ``before``, for good; at most up to the high watermark."""
        fields: dict[str, object] = {"name": name, "before": before}
        return await self._requests.ask("stream.truncate", fields, TruncateStreamResponse)
