"""Every operation of the readers' socket, by a raw peer with tickets: done, or refused."""

import json
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from envelope.subjects import first_level
from jetstream import JetstreamClient
from jetstream.protocol.group_requests import MemberBeat, SendHeartbeat
from jetstream.protocol.requests import Fetch, GetMetadata, ListOffsets, Request, encode_request
from metadata.api.ticket_responses import TicketResponse
from tests.support.member_requests import member_requests
from tests.support.sockets import RawPeer

ALLOWED: Final = "allowed"
FORBIDDEN: Final = "forbidden"
_REFUSALS: Final = frozenset({FORBIDDEN, "unauthorized", "invalid_ticket"})


@dataclass(frozen=True, slots=True)
class Operation:
    """One request at the socket, and what it is about: a stream, maybe some subjects of it, or a group."""

    what: str
    request: Request
    stream: str | None = None
    subject: str | None = None
    group: str | None = None

    def __str__(self) -> str:
        return f"{self.what} of {self.stream or self.group} {self.subject or ''}"

    @property
    def is_fetch(self) -> bool:
        return isinstance(self.request, Fetch)


def operations(
    streams: Iterable[str], subjects: Iterable[str | None], groups: Iterable[str]
) -> Iterator[Operation]:
    """Yield every operation with each stream or group, and fetches with each of the subjects."""
    subjects = tuple(subjects)
    for stream in streams:
        for subject in subjects:
            yield from (
                Operation(what, request, stream, subject) for what, request in _fetches(stream, subject)
            )
        yield from (Operation(what, request, stream) for what, request in _about(stream))
    for group in groups:
        for request in _of_a_member(group):
            yield Operation(request.op, request, group=group)


def _fetches(stream: str, subject: str | None) -> Iterator[tuple[str, Request]]:
    yield "fetch", Fetch(id=1, stream=stream, offset=0, subject=subject)
    yield "fetch of a file", Fetch(id=1, stream=stream, offset=0, subject=subject, short_circuit=True)
    yield "fetch next", Fetch(id=1, stream=stream, offset="next", cursor=1, subject=subject)


def _about(stream: str) -> Iterator[tuple[str, Request]]:
    yield "metadata", GetMetadata(id=1, streams=[stream])
    for at in ("earliest", "latest"):
        yield at, ListOffsets(id=1, stream=stream, at=at)
    yield "timestamp", ListOffsets(id=1, stream=stream, at="timestamp", timestamp=0)
    yield "txid", ListOffsets(id=1, stream=stream, at="txid", txid=0)
    yield "bytes", ListOffsets(id=1, stream=stream, at="bytes", offset=0, bytes=1)


def _of_a_member(group: str) -> Iterator[Request]:
    yield from member_requests(group)
    beat = MemberBeat(group=group, member="m", generation=1)
    yield SendHeartbeat(id=1, beats=[beat], max_wait_ms=0)


async def ticket(client: JetstreamClient, operation: str, **fields: object) -> str:
    """Return the text of a ticket, and get the one that has to be shown for it."""
    subject = fields.get("subject")
    level = first_level(subject) if isinstance(subject, str) else None
    if level is not None:
        fields["first_level"] = await ticket(client, operation, **{**fields, "subject": level})
    answer = await client.requests.ask(operation, dict(fields), TicketResponse)
    return answer.ticket


@asynccontextmanager
async def peer(port: int, **hello: object) -> AsyncIterator[tuple[RawPeer, dict[str, Any]]]:
    """Connect, say hello, and yield the connection with the answer."""
    raw = RawPeer(port)
    try:
        yield raw, await raw.ask(op="hello", id=0, protocol=1, **hello)
    finally:
        raw.close()


@asynccontextmanager
async def holder(port: int, tickets: list[str]) -> AsyncIterator[RawPeer]:
    """Connect, and show all the tickets, the first of them with the hello."""
    async with peer(port, ticket=tickets[0]) as (raw, hello):
        assert "error" not in hello
        for text in tickets[1:]:
            assert "error" not in await raw.ask(op="ticket", id=9, ticket=text)
        yield raw


async def outcome(raw: RawPeer, request: Request) -> str:
    """Return how a request is answered: the code of a refusal of rights, or that it was allowed."""
    await raw.request(**json.loads(encode_request(request)))
    answer, _ = await raw.response()
    refused = answer.get("refused") or [answer]  # of a heartbeat, its members
    code = str(refused[0].get("error", {}).get("err_code"))
    return code if code in _REFUSALS else ALLOWED


async def check_nothing_is_done(port: int, request: Request, **hello: object) -> None:
    """Send a request behind a hello that must be refused: the connection ends without an answer to it."""
    async with peer(port, **hello) as (raw, answer):
        assert answer["error"]["err_code"] in {"unauthorized", "invalid_ticket"}
        try:
            await raw.request(**json.loads(encode_request(request)))
        except (BrokenPipeError, ConnectionResetError):
            return
        assert await raw.ended()
