"""A stream in Azure Blob Storage: an emulator stands in for a real one."""

import contextlib
from pathlib import Path

import pytest

from envelope.errors import DeadlinePassed, TierUnavailable
from jetstream.tier.object_store import ObjectStore, without_secrets
from jetstream.tier.restore import all_remains
from tests.support.nodes import run
from tests.support.sockets import until
from tests.support.tiered_nodes import check_life, next_of, tiered, tiered_node


def test_a_stream_lives_in_azure_and_comes_back_from_there(tmp_path: Path, place: str) -> None:
    run(check_life(tmp_path, place))


def test_a_stream_that_is_deleted_leaves_no_object(tmp_path: Path, place: str) -> None:
    async def scenario() -> None:
        store = ObjectStore.at(place)
        async with tiered_node(tmp_path, tier=place) as (js, node):
            await tiered(js, node)
            [directory] = store.directories()
            await js.streams.truncate("orders", 100)
            await until(lambda: min(next_of(path) for path in store.sizes(directory)) > 100)
            # The emulator refuses to delete a directory, and is asked again for longer than that.
            with contextlib.suppress(DeadlinePassed):
                await js.streams.delete("orders")
            await until(lambda: store.sizes(directory) == {})
            assert all_remains(store) == []

    run(scenario())


def test_azure_is_a_store(place: str) -> None:
    store = ObjectStore.at(place)
    assert store.directories() == []
    assert store.sizes("x") == {}
    store.put("x/one", [b"12", b"345"])
    store.put("x/one", [b"1234"])
    assert store.sizes("x") == {"x/one": 4}
    assert store.size_of("x/one") == 4
    assert store.size_of("x/two") is None
    assert b"".join(store.chunks("x/one")) == b"1234"
    assert store.directories() == ["x"]
    store.delete("x/one")
    store.delete("x/one")
    with pytest.raises(TierUnavailable) as caught:
        list(store.chunks("x/one"))
    secret = place.rpartition("sig=")[2]
    assert secret not in str(caught.value)
    assert secret not in without_secrets(place)
    store.put("x/two", [b"12"])
    store.delete_directory("x")
    assert store.sizes("x") == {}
    store.delete_directory("x")
