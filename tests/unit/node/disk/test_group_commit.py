"""When the groups of a stream begin, and when its acks leave."""

import asyncio
import socket

from envelope.errors import StreamOffline
from jetstream.log.log import Log
from jetstream.node.disk.appends import GroupAppend
from jetstream.node.disk.group_commit import GroupCommit
from jetstream.node.runtime.crash import Crash
from tests.support.disk_threads import running
from tests.support.logs import NOW, batch_for, begun
from tests.support.memory_disk import MemoryDisk
from tests.support.sockets import run, until


class Stream(asyncio.Protocol):
    """Stores what it receives, each byte a record, and notes what happens to it."""

    def __init__(self, log: Log, noted: list[str], publisher: socket.socket) -> None:
        self._log, self._noted, self._publisher = log, noted, publisher
        self._waiting = b""
        self._is_due = False
        self.commit: GroupCommit

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol.data_received`."""
        self._waiting += data
        if not self._is_due:
            self._is_due = True
            self.commit.due(self)

    def next_group(self) -> GroupAppend | None:
        """See `Appender.next_group`."""
        self._is_due = False
        values, self._waiting = self._waiting, b""
        if not values:
            return None
        self._noted.append(f"group {values.decode()}")
        return GroupAppend(self._log, [batch_for(self._log, [bytes([value]) for value in values])], NOW)

    def appended(self, append: GroupAppend) -> bool:
        """See `Appender.appended`; at the end of the first, one more message lies in the socket."""
        self._noted.append(f"appended {append.records}")
        if append.base == 0:
            self._waiting += b"b"
            self._publisher.send(b"c")
        self._is_due = bool(self._waiting)
        return self._is_due

    def give_up(self) -> None:
        """See `Appender.give_up`."""
        self._noted.append("gave up")


def test_acks_leave_and_what_lies_in_the_socket_is_read_before_the_next_group_begins() -> None:
    async def test() -> None:
        disk, noted = MemoryDisk(), list[str]()
        here, publisher = socket.socketpair()
        stream = Stream(begun(disk), noted, publisher)
        async with running(disk) as thread:
            stream.commit = GroupCommit(thread, lambda: noted.append("acks"), Crash())
            transport, _ = await asyncio.get_running_loop().create_connection(lambda: stream, sock=here)
            publisher.send(b"a")
            await until(lambda: noted.count("acks") == 2)
            assert noted == ["group a", "appended 1", "acks", "group bc", "appended 2", "acks"]
            transport.close()
        publisher.close()

    run(test(), "uvloop")


def test_a_group_that_the_disk_does_not_take_any_more_stops_the_node() -> None:
    async def test() -> None:
        disk, noted, crash = MemoryDisk(), list[str](), Crash()
        here, publisher = socket.socketpair()
        stream = Stream(begun(disk), noted, publisher)
        async with running(disk) as thread:
            stream.commit = GroupCommit(thread, lambda: noted.append("acks"), crash)
        stream.data_received(b"a")
        await until(lambda: "gave up" in noted)
        assert crash.reported
        try:
            await crash.watch()
        except StreamOffline:
            noted.append("stopped")
        assert noted == ["group a", "gave up", "stopped"]
        here.close()
        publisher.close()

    run(test(), "uvloop")
