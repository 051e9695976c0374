"""What a store alone tells of one stream."""

from dataclasses import replace

import pytest

from envelope.errors import UnknownStream
from envelope.types import Incarnation, StreamName, TimestampUs
from jetstream.tier.restore import all_remains, remains_of
from jetstream.tier.upload import upload_manifest
from metadata.catalog.directories import directory_of
from tests.support.manifests import manifest
from tests.support.object_stores import MemoryStore

EMPTY = manifest()


def put(objects: MemoryStore, name: str, life: str, written_at: int) -> str:
    """Write the list of a stream without a segment; return where it lies."""
    content = replace(
        EMPTY, name=StreamName(name), incarnation=Incarnation(life), written_at=TimestampUs(written_at)
    )
    return upload_manifest(objects.store, directory_of(content.name, content.incarnation), content)


def test_one_stream_is_looked_for_where_it_alone_can_be() -> None:
    objects = MemoryStore()
    newest, older = put(objects, "a/b", "9", 7), put(objects, "a/b", "f", 5)
    for number in range(20):
        put(objects, f"other-{number}", "1", 9)
    objects.trace.clear()
    assert remains_of(objects.store, StreamName("a/b"), None).path == newest
    assert remains_of(objects.store, StreamName("a/b"), Incarnation("f")).path == older
    for name, life in (("a/b", "1"), ("b", None), ("a", None)):
        with pytest.raises(UnknownStream):
            remains_of(objects.store, StreamName(name), None if life is None else Incarnation(life))
    assert not any("other-" in call for call in objects.trace)
    assert len(all_remains(objects.store)) == 22


def test_names_that_begin_alike_for_long_are_told_by_the_manifest() -> None:
    objects, begin = MemoryStore(), "n" * 150
    put(objects, begin + "a", "1", 5)
    wanted = put(objects, begin + "b", "2", 4)
    assert remains_of(objects.store, StreamName(begin + "b"), None).path == wanted
