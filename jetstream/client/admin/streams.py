"""Streams and cluster by the request API: create, change, look at, truncate, delete."""

from collections.abc import Sequence
from typing import overload

from envelope.errors import RequestError
from envelope.partition_errors import StreamIsPartitioned
from jetstream.client.nodes.request_api import NatsRequests
from metadata.api.publisher_responses import ResetStreamTimeResponse, SetTxidResponse, StreamPublishers
from metadata.api.responses import (
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


class Streams:
    """The streams of a cluster. Every method raises what `NatsRequests.ask` raises."""

    def __init__(self, requests: NatsRequests) -> None:
        self._requests = requests

    @overload
    async def create(
        self, /, name: str, subject: str, *, partitions: None = None, **config: object
    ) -> CreateStreamResponse: ...

    @overload
    async def create(
        self, /, name: str, subject: str, *, partitions: int, **config: object
    ) -> CreatePartitionedStreamResponse: ...

    @overload
    async def create(
        self, /, name: str, subject: str, **config: object
    ) -> CreateStreamResponse | CreatePartitionedStreamResponse: ...

    async def create(
        self, /, name: str, subject: str, **config: object
    ) -> CreateStreamResponse | CreatePartitionedStreamResponse:
        """Create a stream, or return it if it exists with an equal configuration; then ``created`` is False.

        With ``partitions=4, partition_by="key"`` it is partitioned: four streams, ``NAME/0`` and so on.

        Args:
            name: unique in the cluster.
            subject: NATS subject or pattern to bind.
            config: `metadata.stream_config.StreamConfig`'s other fields; durations as `datetime.timedelta`,
                seconds or ISO 8601, sizes in bytes.

        Raises:
            StreamExists: the name is taken by a stream with another configuration.
            InvalidName, InvalidSubject, InvalidConfig: a name, a subject or a value is invalid.
        """
        fields: dict[str, object] = {"name": name, "subject": subject, **config}
        return await self._requests.ask(
            "stream.create", fields, CreateStreamResponse, CreatePartitionedStreamResponse
        )

    async def restore(
        self, name: str, incarnation: str | None = None, replicas: int | None = None
    ) -> CreateStreamResponse:
        """Recreate a lost stream from the nodes' object store.

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

    async def update(self, /, name: str, **changes: object) -> UpdateStreamResponse | PartitionedStreamInfo:
        """Change the named fields of a stream's configuration; None puts one back to its default.

        With another number of ``replicas`` the answer has the ``target`` of the move that begins; it goes on
        by itself, and ``config.replicas`` is the new number at its end.

        Of a partitioned stream all partitions are changed, and a larger ``partitions`` adds some. If that is
        cut off, the same call does the rest.
        """
        fields: dict[str, object] = {"name": name, **changes}
        return await self._requests.ask("stream.update", fields, UpdateStreamResponse, PartitionedStreamInfo)

    async def delete(self, name: str) -> DeleteStreamResponse | DeletePartitionedStreamResponse:
        """Delete a stream with all its records; a partitioned one with all its partitions."""
        fields: dict[str, object] = {"name": name}
        return await self._requests.ask(
            "stream.delete", fields, DeleteStreamResponse, DeletePartitionedStreamResponse
        )

    async def info(self, name: str) -> StreamInfo:
        """Return a stream's configuration and live state.

        Raises:
            UnknownStream: there is none.
            StreamIsPartitioned: it is to be asked of one partition, or `partitions` of all.
        """
        answer = await self._requests.stream_info(name)
        if isinstance(answer, PartitionedStreamInfo):
            raise StreamIsPartitioned(
                f"stream {name!r} is partitioned: look at its partitions", partitions=len(answer.partitions)
            )
        return answer

    async def publishers(self, name: str) -> StreamPublishers:
        """Return what a stream remembers of its publishers: its last txid, and all sessions.

        Of a publisher that is at work it may be what was so a moment ago.

        Raises:
            UnknownStream: there is none.
            StreamIsPartitioned: it is to be asked of one partition.
            StreamOffline: nobody leads it.
        """
        pages: list[StreamPublishers] = []
        while not pages or (pages[-1].more and pages[-1].sessions):
            after = pages[-1].sessions[-1].session if pages else None
            fields: dict[str, object] = {"name": name, "after": after}
            pages.append(await self._requests.ask("stream.publishers", fields, StreamPublishers))
        sessions = [session for page in pages for session in page.sessions]
        return pages[0].model_copy(update={"sessions": sessions, "more": False})

    async def partitions(self, name: str) -> PartitionedStreamInfo:
        """Return a partitioned stream's configuration and its partitions.

        Raises:
            UnknownStream: there is no stream of that name.
            RequestError: it is not partitioned.
        """
        answer = await self._requests.stream_info(name)
        if isinstance(answer, StreamInfo):
            raise RequestError(f"stream {name!r} is not partitioned")
        return answer

    async def list(self, prefix: str | None = None, *, internal: bool = False) -> "list[StreamSummary]":
        """Return all streams in the order of their names, or those whose name begins with ``prefix``.

        ``internal``: the system's own, whose names begin with ``__``, are among them.
        They come in pages by number, of up to 256: of more, one may be missing or come twice if others are
        deleted or created at this moment.
        """
        fields: dict[str, object] = {"internal": True} if internal else {}
        if prefix is not None:
            fields["prefix"] = prefix
        return await self._requests.paged(
            "stream.list", fields, ListStreamsResponse, lambda page: page.streams
        )

    async def lookup(self, subject: str) -> "Sequence[StreamSummary]":
        """Return the streams that would store a message on ``subject``."""
        return (
            await self._requests.ask("stream.lookup", {"subject": subject}, LookupStreamsResponse)
        ).streams

    async def truncate(self, name: str, before: int) -> TruncateStreamResponse:
        """Remove all records below offset ``before``, for good; at most up to the high watermark.

        The answer says what that has freed on the leader's disk, and from which start on more is.
        """
        fields: dict[str, object] = {"name": name, "before": before}
        return await self._requests.ask("stream.truncate", fields, TruncateStreamResponse)

    async def set_txid(self, name: str, txid: int) -> SetTxidResponse:
        """Let the stream's last txid be this one from now on; durable on return.

        No record of before counts any more: lower txids than these have are taken. To be called when nobody
        publishes the ones that are too large; the answer says which one is the last.
        """
        return await self._requests.ask("stream.set_txid", {"name": name, "txid": txid}, SetTxidResponse)

    async def reset_time(self, name: str) -> ResetStreamTimeResponse:
        """Let the times of a stream's next records go on from its leader's clock, if they are ahead of it."""
        return await self._requests.ask("stream.reset_time", {"name": name}, ResetStreamTimeResponse)
