"""Micro-batches that are staged in files and published from there, for queries that do not repeat their rows.

The tasks write their rows to files; when all are written, the driver writes down which files the micro-batch
has, and publishes from these in one session. From then on the manifest is the micro-batch: if Spark runs it
again, with whatever rows, the rows that were staged first are published to their end. So each has the rows of
one run.

    crash                        then                                            run again
    before the manifest is there nothing is published                            its rows count
    while it is published        the stream has some, and knows how many         the rest is published
    before it is marked as done  the stream has all                              nothing is added
    after that                   files may be left                               they are removed

One driver runs a query at a time, as Spark demands. A file is durable before it counts; see
`jetstream.tier.object_store`.
"""

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain
from typing import NamedTuple

import pyarrow as pa

from envelope.errors import CorruptDataError, InvalidConfig
from envelope.spark_errors import InvalidOption
from envelope.types import Buffer
from jetstream.spark.writing.staged_files import (
    StagedFile,
    StagedManifest,
    batch_directory,
    decoded_manifest,
    done_path,
    is_manifest,
    is_over,
    last_done,
    manifest_path,
    may_be_manifest,
    rows_path,
)
from jetstream.tier.object_store import ObjectStore


class MicroBatch(NamedTuple):
    """A micro-batch that is to be published."""

    manifest: StagedManifest
    is_resumed: bool
    """An earlier run has written it down, and perhaps published some of it."""


def open_staging(uri: str) -> "Staging":
    """Return what is staged at ``uri``, a URI of pyarrow or the absolute path of a local directory.

    Raises:
        InvalidOption: there is no such kind of store, or the URI says too little.
    """
    try:
        return Staging(ObjectStore.at(uri))
    except InvalidConfig as error:
        raise InvalidOption(f"staging: {error.description.removeprefix('tier: ')}") from None


class Staging:
    """Stages micro-batches in one directory; all calls block.

    Every method raises `TierUnavailable` where the store refuses.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def stage(
        self, query: str, batch: int, partition: int, rows: Iterator[pa.RecordBatch]
    ) -> StagedFile | None:
        """Write the rows of one attempt of a task, which are durable on return; None: there are none."""
        first = next(rows, None)
        if first is None:
            return None
        path = rows_path(query, batch, partition, uuid.uuid4().hex)
        count = 0

        def messages() -> Iterator[Buffer]:
            nonlocal count
            yield memoryview(first.schema.serialize())
            for each in chain((first,), rows):
                count += each.num_rows
                yield memoryview(each.serialize())

        self._store.put(path, messages())
        return StagedFile(path, partition, count)

    def discard(self, files: Iterable[StagedFile]) -> None:
        """Remove files that no manifest names."""
        for each in files:
            self._store.delete(each.path)

    def publish_once(
        self,
        query: str,
        batch: int,
        files: Sequence[StagedFile],
        publish: Callable[[MicroBatch, Iterator[pa.RecordBatch]], None],
    ) -> None:
        """Publish a micro-batch, unless it is published; then remove what nobody needs any more.

        Args:
            query: whose it is.
            batch: its number; none of a lower number is published any more.
            files: what this run has staged; an earlier run's count instead, if it has come so far.
            publish: publishes the rows, and returns when all are stored; may be called again for the same
                ones, by another run.
        """
        done = last_done(self._store.sizes(query))
        if done is None or done < batch:
            micro_batch = self._resumed(query, batch) or self._written(query, batch, files)
            publish(micro_batch, self._rows(micro_batch.manifest))
            self._store.put(done_path(query, batch), [b""])
            done = batch
        self._remove_until(query, done)

    def _resumed(self, query: str, batch: int) -> MicroBatch | None:
        for path in sorted(self._store.sizes(batch_directory(query, batch))):
            if not may_be_manifest(path):
                continue
            content = b"".join(bytes(chunk) for chunk in self._store.chunks(path))
            if is_manifest(path, content):
                self._store.settle(path)  # whoever has written it may have come no further
                return MicroBatch(decoded_manifest(content), is_resumed=True)
        return None

    def _written(self, query: str, batch: int, files: Sequence[StagedFile]) -> MicroBatch:
        in_order = tuple(sorted(files, key=lambda each: each.partition))
        manifest = StagedManifest(query, batch, datetime.now(UTC), in_order)
        self._store.put(manifest_path(manifest), [manifest.encoded()])
        return MicroBatch(manifest, is_resumed=False)

    def _rows(self, manifest: StagedManifest) -> Iterator[pa.RecordBatch]:
        for each in manifest.files:
            count = 0
            with self._store.opened(each.path) as stream, pa.ipc.open_stream(stream) as batches:
                for batch in batches:
                    count += batch.num_rows
                    yield batch
            if count != each.rows:
                raise CorruptDataError(f"{each.path} has {count} rows, and {each.rows} were staged")

    def _remove_until(self, query: str, done: int) -> None:
        over = [path for path in self._store.sizes(query) if is_over(path, done)]
        for directory in sorted({path.rpartition("/")[0] for path in over} - {query}):
            self._store.delete_directory(directory)
        for path in sorted(over):
            if path.rpartition("/")[0] == query:
                self._store.delete(path)
