"""Streams that are compacted by key: what was acked of them, and what their readers and sessions say."""

import asyncio
from dataclasses import dataclass, field

import jetstream
from envelope.errors import JetstreamError
from jetstream import JetstreamClient
from tests.support.commands import json_lines, succeeded
from tests.support.nodes import WAIT_SECONDS


@dataclass
class KeyedPublisher:
    """Publishes values of some keys to a stream, and knows the last one that was acked of each.

    A turn gives all keys a new value but for two that it deletes. Besides it writes a key for the first and
    last time, and every other turn deletes such a key of an earlier one for good.
    """

    js: JetstreamClient
    stream: str
    keys: int = 20
    turns: int = 0
    acked: dict[bytes, bytes] = field(default_factory=dict)

    async def turn(self) -> None:
        """Publish all, again if need be until all is acked; in order, so that the last is the last."""
        self.turns += 1
        deleted = (self.turns % self.keys, (self.turns + 1) % self.keys)
        value = b"%d " % self.turns + b"x" * 1000
        rows = {b"k%d" % key: None if key in deleted else value for key in range(self.keys)}
        rows[b"once%d" % self.turns] = value
        if self.turns % 2 == 0:
            rows[b"once%d" % (self.turns // 2)] = None
        async with asyncio.timeout(WAIT_SECONDS):
            while not await self._are_acked(rows):
                pass
        for key, last in rows.items():
            self.acked.pop(key, None)
            if last is not None:
                self.acked[key] = last

    async def _are_acked(self, rows: dict[bytes, bytes | None]) -> bool:
        try:
            await self.js.publish_all(
                (f"{self.stream}.x", value, {"key": key.decode()}) for key, value in rows.items()
            )
        except JetstreamError:
            return False
        return True

    async def check(self, table: jetstream.StreamTable) -> None:
        """Compare what was acked with this table and with a new one, in the order of offsets."""
        await table.caught_up()
        assert values(table) == list(self.acked.items())
        async with self.js.table(self.stream) as new:
            assert values(new) == list(self.acked.items())

    async def check_command(self, url: str) -> None:
        """Compare what was acked with what the command reads."""
        output = await asyncio.to_thread(succeeded, "read", self.stream, "--latest-by-key", nats=url)
        found = [(line["key"].encode(), line["value"].encode()) for line in json_lines(output)]
        assert found == list(self.acked.items())


def values(table: jetstream.StreamTable) -> list[tuple[bytes, bytes | None]]:
    return [(key, record.value) for key, record in table.items()]


async def publish_in_session(js: JetstreamClient, stream: str, count: int) -> list[jetstream.SessionAck]:
    """All of a session from its first message on, all of one key."""
    async with js.session("importer", stream=stream) as session:
        futures = [await session.publish(f"{stream}.x", b"of the session", key="k0") for _ in range(count)]
        return [await future for future in futures]


async def check_session(js: JetstreamClient, stream: str, count: int) -> None:
    """Repeat the first ``count`` messages of the session, whose records are gone, and send the next one."""
    offsets = [record.offset async for record in js.read(stream)]
    assert min(offsets) >= count, "the records of the session were compacted away"
    end = (await js.streams.info(stream)).log_end_offset
    *repeats, stored = await publish_in_session(js, stream, count + 1)
    assert all(ack.duplicate for ack in repeats)
    assert (stored.offset, stored.duplicate) == (end, False)
