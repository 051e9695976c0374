"""Members of consumer groups without the client library: thousands of them in one process.

A connection beats for all its members in one heartbeat, and again as soon as that is answered; what members
are to give up is released at once.
"""

import select
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, count
from typing import Any, Final

from benchmarks.raw_protocol import BlockingConnection, Frames, Header, RefusedByNode, encode
from envelope.internal_streams import group_shard
from envelope.types import StreamName

RECEIVE_BYTES: Final = 65_536
HEARTBEAT_MS: Final = 3_000
SESSION_MS: Final = 30_000
FIND_SECONDS_MAX: Final = 30.0
FIND_PAUSE_SECONDS: Final = 0.02

Done = Callable[[Header], None]
"""Called with the answer to a request."""


class Unexpected(Exception):
    """A connection was closed, or a member heard what it must not hear in a benchmark."""


def groups_of(shard: StreamName, amount: int) -> list[str]:
    """Return so many names of groups that are all in one shard."""
    names = (f"bench-{number}" for number in count())
    in_shard = (name for name in names if group_shard(name) == shard)
    return [next(in_shard) for _ in range(amount)]


def find_coordinator(address: str, group: str) -> Header:
    """Ask any node for a group's coordinator until there is one that answers; return its node, host and port.

    Raises:
        RefusedByNode: there is none within half a minute.
    """
    deadline = time.monotonic() + FIND_SECONDS_MAX
    while True:
        try:
            found = BlockingConnection(address).ask(op="find_coordinator", id=1, group=group)
            there = BlockingConnection(f"{found['host']}:{found['port']}")
            none = [{"stream": "none", "numbers": [0]}]
            there.ask(op="fetch_cursors", id=1, group=group, partitions=none)
        except RefusedByNode:
            if time.monotonic() > deadline:
                raise
            time.sleep(FIND_PAUSE_SECONDS)
        else:
            return found


@dataclass(slots=True)
class Member:
    """One member of one group; joins by `Line.join`."""

    group: str
    client: str
    streams: Sequence[str]
    member_id: str = ""
    generation: int = 0
    owned: int = 0
    """Partitions that it keeps."""

    def beat(self) -> dict[str, object]:
        """Return its part of a heartbeat."""
        return {"group": self.group, "member": self.member_id, "generation": self.generation}

    def take(self, assignment: dict[str, Any]) -> list[dict[str, object]]:
        """Take in what it owns; return the claims that it is to release."""
        if assignment["generation"] < self.generation:
            return []
        self.member_id, self.generation = assignment["member"], assignment["generation"]
        streams = assignment["streams"]
        self.owned = sum(len(stream["keeps"]) for stream in streams)
        given_up = [stream for stream in streams if stream["gives_up"]]
        return [{"stream": stream["stream"], "partitions": stream["gives_up"]} for stream in given_up]


class Line:
    """One connection to a coordinator, with its members."""

    def __init__(self, address: str, members: Sequence[Member]) -> None:
        """Connect; nobody joins before `join`."""
        self.socket: socket.socket = BlockingConnection(address).socket
        self.socket.setblocking(False)
        self.members = members
        self.answered = self.news = 0
        """Heartbeats, and what they have brought."""
        self.beats = False
        """Whether its members are to be kept alive: a heartbeat is always under way then."""
        self._by_id: dict[str, Member] = {}
        self._frames = Frames()
        self._waiting: dict[int, Done] = {}
        self._last_id = 0

    @property
    def in_flight(self) -> int:
        """Requests that are not answered, the heartbeat among them."""
        return len(self._waiting)

    def next_id(self) -> int:
        """Return the id of the next request."""
        self._last_id += 1
        return self._last_id

    def ask(self, done: Done, **request: object) -> None:
        """Send one request."""
        number = self.next_id()
        self.send(number, encode(id=number, **request), done)

    def send(self, number: int, data: bytes, done: Done) -> None:
        """Send the bytes of one request."""
        self._waiting[number] = done
        self.socket.sendall(data)

    def receive(self) -> None:
        """Take in what has arrived.

        Raises:
            Unexpected: the connection was closed.
            RefusedByNode: a request was refused.
        """
        data = self.socket.recv(RECEIVE_BYTES)
        if not data:
            raise Unexpected("a connection was closed")
        for header, _ in self._frames.feed(data):
            self._waiting.pop(header["id"])(header)

    # --- members -----------------------------------------------------------------------------------

    def join(self) -> None:
        """Let all members join."""
        for member in self.members:
            self.ask(
                partial(self._joined, member),
                op="join_group",
                group=member.group,
                client=member.client,
                number=1,
                streams=list(member.streams),
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=SESSION_MS,
            )

    def _joined(self, member: Member, answer: Header) -> None:
        self._take(member, answer)
        self._by_id[member.member_id] = member

    def _take(self, member: Member, answer: Header) -> None:
        """Take in what a member owns; let it release what it is to give up."""
        claims = member.take(answer["assignment"])
        if claims:
            whose = {"group": member.group, "member": member.member_id}
            self.ask(partial(self._take, member), op="release", claims=claims, **whose)

    def begin_to_beat(self) -> None:
        """Say that all members are alive, again and again until they `leave`."""
        self.beats = True
        self._beat()

    def _beat(self) -> None:
        beats = [member.beat() for member in self.members]
        self.ask(self._beaten, op="heartbeat", beats=beats, max_wait_ms=HEARTBEAT_MS)

    def _beaten(self, answer: Header) -> None:
        if not self.beats:
            return  # its members have left
        if answer["refused"]:
            raise Unexpected(f"a heartbeat was refused: {answer['refused'][0]}")
        self.answered += 1
        for assignment in answer["assignments"]:
            self.news += 1
            self._take(self._by_id[assignment["member"]], {"assignment": assignment})
        self._beat()

    def leave(self) -> None:
        """End the heartbeats and let all members leave."""
        self.beats = False
        for member in self.members:
            self.ask(lambda _: None, op="leave_group", group=member.group, member=member.member_id)


@dataclass(slots=True)
class Lines:
    """Many connections of one process."""

    lines: list[Line] = field(default_factory=list)
    _poll: select.epoll = field(default_factory=select.epoll)
    _by_fileno: dict[int, Line] = field(default_factory=dict)

    def add(self, line: Line) -> None:
        """Receive for one more."""
        self.lines.append(line)
        self._by_fileno[line.socket.fileno()] = line
        self._poll.register(line.socket.fileno(), select.EPOLLIN)

    def step(self, seconds_max: float) -> None:
        """Wait until something arrives, not longer than that, and take it in; exact to microseconds."""
        select.select([self._poll.fileno()], [], [], max(0.0, seconds_max))
        for fileno, _ in self._poll.poll(0):
            self._by_fileno[fileno].receive()

    def until(self, is_so: Callable[[], bool], seconds_max: float = FIND_SECONDS_MAX) -> None:
        """Take in what arrives until ``is_so``.

        Raises:
            Unexpected: it is not within ``seconds_max``.
        """
        deadline = time.monotonic() + seconds_max
        while not is_so():
            if time.monotonic() > deadline:
                raise Unexpected(f"not within {seconds_max:.0f} s")
            self.step(0.1)

    def until_answered(self) -> None:
        """Take in what arrives until every connection's requests are answered, heartbeats aside."""
        self.until(lambda: all(line.in_flight <= line.beats for line in self.lines))

    def begin_to_beat(self) -> None:
        """Send heartbeats on all connections from now on."""
        for line in self.lines:
            line.begin_to_beat()

    def leave(self) -> None:
        """End the heartbeats and let all members leave."""
        for line in self.lines:
            line.leave()
        self.until_answered()

    @property
    def members(self) -> Iterator[Member]:
        """Those of all connections."""
        return chain.from_iterable(line.members for line in self.lines)
