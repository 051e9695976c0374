"""Upkeep of a real node goes on where a piece of a stream is damaged or gone."""

import logging
from functools import partial
from pathlib import Path

import pytest

import jetstream
from jetstream.node.node import Node
from tests.support.compacting_nodes import CONFIG, published
from tests.support.nodes import nats_and_node, run
from tests.support.sockets import until


def file_at(directory: Path, node: Node, stream: str, row: int) -> Path:
    """The file of a segment."""
    replica = node.stream(stream)
    assert replica is not None
    name = Path(replica.log.reader.segments[row].path).name
    [path] = [path for path in directory.rglob(name) if replica.incarnation in str(path)]
    return path


@pytest.mark.parametrize("is_gone", [False, True], ids=["damaged", "gone"])
def test_a_segment_that_cannot_be_read_does_not_stop_compaction_of_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_gone: bool
) -> None:
    caplog.set_level(logging.INFO, logger="jetstream.node.maintenance")

    def is_compacted_to(end: int) -> bool:
        ends = [record.getMessage().rpartition("to=")[2] for record in logged("compacted stream")]
        return max(map(int, ends), default=0) >= end

    def logged(what: str) -> list[logging.LogRecord]:
        return [record for record in caplog.records if record.getMessage().startswith(what)]

    async def scenario() -> None:
        async with (
            nats_and_node(tmp_path, maintenance_interval=0.05) as (url, node),
            jetstream.connect(url) as js,
        ):
            await js.streams.create("prices", "prices.>", **{**CONFIG, "compact": "none"})
            for turn in range(0, 600, 60):
                await published(js, "prices", range(turn, turn + 60))
            stream = node.stream("prices")
            assert stream is not None
            reader = stream.log.reader
            assert len(reader.segments) > 5
            path = file_at(tmp_path, node, "prices", 1)
            where, kept = reader.segments[1], path.read_bytes()
            content = bytearray(kept)
            content[-500] ^= 4
            path.unlink() if is_gone else path.write_bytes(content)
            await js.streams.update("prices", compact="key")
            end = 0
            for turn in (600, 800, 1000):
                end = reader.segments[-1].base
                await until(partial(is_compacted_to, end))
                await published(js, "prices", range(turn, turn + 200))
            assert where in reader.segments, "it stays as it is"
            assert is_gone or path.read_bytes() == content
            behind = [segment for segment in reader.segments[2:] if segment.next <= end]
            assert len(behind) > 5
            assert sum(segment.size for segment in behind) < len(behind) * 20_000, "all others are compacted"
            assert stream.log.compaction.cleaned_end == where.base
            assert stream.log.failed is None
        assert len(logged("failed what=Compactor")) == 1
        [warning] = logged("compacted around damage")
        assert f"segments={where.base} runbook=RB-01" in warning.getMessage()

    run(scenario())
