"""A stream whose log's end is damaged takes nothing more and serves what is good; the others go on."""

from pathlib import Path

import pytest

import jetstream
from envelope.errors import CorruptDataError, StreamOffline
from jetstream.log.disk.state_file import decode_state
from jetstream.log.state.checkpoint import CHECKPOINT_FILE, decode_checkpoint
from jetstream.node.nats.embedded_server import EmbeddedNatsServer
from jetstream.node.node import Node
from tests.support.nodes import NodeProcess, node_config, run
from tests.support.sockets import until

VALUES = [b"0", b"1", b"2"]


def damage_the_end(data: Path, stream: str) -> None:
    """Flip a bit of the last batch, of which something says that it was synced."""
    [segment] = (data / "streams").glob(f"{stream}@*/*.arrows")
    content = bytearray(segment.read_bytes())
    content[-40] ^= 1
    segment.write_bytes(content)


def noted_end(data: Path, stream: str) -> int:
    """How far the stream's checkpoint says that the log was synced."""
    [directory] = (data / "streams").glob(f"{stream}@*")
    path = directory / CHECKPOINT_FILE
    return decode_checkpoint(decode_state(path.read_bytes())).synced_end if path.exists() else 0


@pytest.mark.parametrize("witness", ["checkpoint", "epoch"])
def test_a_node_starts_with_a_damaged_end_and_its_other_streams_go_on(witness: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        data = tmp_path / "data"
        async with EmbeddedNatsServer(tmp_path / "nats") as server:
            process = NodeProcess(data, server.url, JETSTREAM_NODE_CHECKPOINT_INTERVAL="PT0.05S")
            process.start()
            async with jetstream.connect(server.url) as js:
                for name in ("bad", "good"):
                    await js.streams.create(name, f"{name}.>")
                    for value in VALUES:
                        await js.publish(f"{name}.x", value)
            if witness == "checkpoint":
                await until(lambda: noted_end(data, "bad") == len(VALUES))
            else:
                process.kill()
                process.start()  # a new epoch begins at the log's end
            process.kill()
            damage_the_end(data, "bad")
            async with (
                Node(node_config(data, server.url)) as node,
                jetstream.connect(server.url) as js,
            ):
                bad = node.stream("bad")
                assert bad is not None
                assert isinstance(bad.log.failed, CorruptDataError)
                assert (await js.publish("good.x", b"3")).offset == 3
                assert [record.value async for record in js.read("good")] == [*VALUES, b"3"]
                with pytest.raises(StreamOffline):
                    await js.publish("bad.x", b"3")
                reader = js.read("bad")
                assert [(await anext(reader)).value for _ in VALUES[:2]] == VALUES[:2]
                with pytest.raises(CorruptDataError):
                    await anext(reader)

    run(scenario())
