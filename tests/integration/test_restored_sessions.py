"""Sessions of publishers go on after a restore, whatever their records tell."""

from pathlib import Path

import jetstream
from envelope.errors import OffsetForgotten
from tests.support.backups import backed_up, node_of_backup, stored
from tests.support.nodes import nats_and_node, run
from tests.support.pauses import pause


def test_a_session_that_was_begun_anew_goes_on_after_a_restore(tmp_path: Path) -> None:
    """Its records of before have higher numbers than the last one, which is all that is known of it."""

    async def scenario() -> None:
        async with nats_and_node(tmp_path / "source") as (url, _), jetstream.connect(url) as client:
            await client.streams.create("orders", "orders.>", session_window=0.05, dedupe_window=0.05)
            for number in (1, 2, 3):
                await client.publish(
                    "orders.a", b"old", session="s", sequence=number, sequence_after=number - 1
                )
            is_new = False
            while not is_new:  # once the session has expired, by the time of records
                await pause()
                await client.publish("orders.b", b"tick")
                try:
                    ack = await client.publish("orders.a", b"new", session="s", sequence=1, sequence_after=0)
                except OffsetForgotten:  # number 1 of before is known, and not any more where
                    continue
                is_new = not ack.duplicate
            await backed_up(client, tmp_path / "backups")
            before = await stored(client, "orders")
        async with node_of_backup(tmp_path / "backups", tmp_path / "target") as (client, _):
            assert await stored(client, "orders") == before

    run(scenario())
