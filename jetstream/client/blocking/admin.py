"""Streams, cursors and groups without asyncio: each call waits for its result."""

from collections.abc import Sequence
from typing import Unpack, overload

from jetstream.client.admin.cursors import Cursors
from jetstream.client.admin.group_lag import CursorMove, GroupLag, Target
from jetstream.client.admin.groups import Groups, ResetOptions
from jetstream.client.admin.streams import Streams
from jetstream.client.blocking.loop_thread import LoopThread
from jetstream.client.publish.messages import PublishAck
from metadata.api.group_responses import GroupInfo, GroupSummary
from metadata.api.responses import (
    CreatePartitionedStreamResponse,
    CreateStreamResponse,
    CursorInfo,
    DeletePartitionedStreamResponse,
    DeleteStreamResponse,
    PartitionedStreamInfo,
    StreamInfo,
    StreamSummary,
    TruncateStreamResponse,
    UpdateStreamResponse,
)


class BlockingStreams:
    """The streams of a cluster; every method is that of `Streams`, awaited."""

    def __init__(self, thread: LoopThread, streams: Streams) -> None:
        self._thread = thread
        self._streams = streams

    @overload
    def create(
        self, name: str, subject: str, *, partitions: None = None, **config: object
    ) -> CreateStreamResponse: ...

    @overload
    def create(
        self, name: str, subject: str, *, partitions: int, **config: object
    ) -> CreatePartitionedStreamResponse: ...

    @overload
    def create(
        self, name: str, subject: str, **config: object
    ) -> CreateStreamResponse | CreatePartitionedStreamResponse: ...

    def create(
        self, name: str, subject: str, **config: object
    ) -> CreateStreamResponse | CreatePartitionedStreamResponse:
        """See `Streams.create`."""
        return self._thread.run(self._streams.create(name, subject, **config))

    def restore(
        self, name: str, incarnation: str | None = None, replicas: int | None = None
    ) -> CreateStreamResponse:
        """See `Streams.restore`."""
        return self._thread.run(self._streams.restore(name, incarnation, replicas))

    def update(self, name: str, **changes: object) -> UpdateStreamResponse | PartitionedStreamInfo:
        """See `Streams.update`."""
        return self._thread.run(self._streams.update(name, **changes))

    def delete(self, name: str) -> DeleteStreamResponse | DeletePartitionedStreamResponse:
        """See `Streams.delete`."""
        return self._thread.run(self._streams.delete(name))

    def info(self, name: str) -> StreamInfo:
        """See `Streams.info`."""
        return self._thread.run(self._streams.info(name))

    def partitions(self, name: str) -> PartitionedStreamInfo:
        """See `Streams.partitions`."""
        return self._thread.run(self._streams.partitions(name))

    def list(self, prefix: str | None = None, *, internal: bool = False) -> "list[StreamSummary]":
        """See `Streams.list`."""
        return self._thread.run(self._streams.list(prefix, internal=internal))

    def lookup(self, subject: str) -> "Sequence[StreamSummary]":
        """See `Streams.lookup`."""
        return self._thread.run(self._streams.lookup(subject))

    def truncate(self, name: str, before: int) -> TruncateStreamResponse:
        """See `Streams.truncate`."""
        return self._thread.run(self._streams.truncate(name, before))


class BlockingCursors:
    """The cursors of all consumers; every method is that of `Cursors`, awaited."""

    def __init__(self, thread: LoopThread, cursors: Cursors) -> None:
        self._thread = thread
        self._cursors = cursors

    def get(self, consumer: str, stream: str) -> CursorInfo:
        """See `Cursors.get`."""
        return self._thread.run(self._cursors.get(consumer, stream))

    def commit(
        self,
        consumer: str,
        stream: str,
        offset: int,
        *,
        metadata: str | None = None,
        incarnation: str | None = None,
    ) -> PublishAck:
        """See `Cursors.commit`."""
        return self._thread.run(
            self._cursors.commit(consumer, stream, offset, metadata=metadata, incarnation=incarnation)
        )

    def delete(self, consumer: str, stream: str) -> PublishAck:
        """See `Cursors.delete`."""
        return self._thread.run(self._cursors.delete(consumer, stream))

    def list(self, consumer: str | None = None, stream: str | None = None) -> "list[CursorInfo]":
        """See `Cursors.list`."""
        return self._thread.run(self._cursors.list(consumer, stream))


class BlockingGroups:
    """The consumer groups of the cluster; every method is that of `Groups`, awaited."""

    def __init__(self, thread: LoopThread, groups: Groups) -> None:
        self._thread = thread
        self._groups = groups

    def list(self, prefix: str | None = None) -> "list[GroupSummary]":
        """See `Groups.list`."""
        return self._thread.run(self._groups.list(prefix))

    def info(self, group: str) -> GroupInfo:
        """See `Groups.info`."""
        return self._thread.run(self._groups.info(group))

    def lag(self, group: str) -> GroupLag:
        """See `Groups.lag`."""
        return self._thread.run(self._groups.lag(group))

    def reset(
        self, group: str, to: Target | None = None, **options: Unpack[ResetOptions]
    ) -> tuple[CursorMove, ...]:
        """See `Groups.reset`."""
        return self._thread.run(self._groups.reset(group, to, **options))

    def move(self, group: str, moves: Sequence[CursorMove], *, force: bool = False) -> None:
        """See `Groups.move`."""
        self._thread.run(self._groups.move(group, moves, force=force))

    def delete(self, group: str, *, force: bool = False) -> None:
        """See `Groups.delete`."""
        self._thread.run(self._groups.delete(group, force=force))
