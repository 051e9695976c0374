"""Every operation of the socket with every ticket, inside and outside of it: done or refused as it should."""

import json
import os
import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from pydantic import SecretStr

import jetstream
from envelope.types import TimestampUs
from jetstream.protocol.requests import Fetch, ShowTicket, encode_request
from metadata.api.ticket_responses import RotateKeyResponse
from metadata.tickets import Ticket, TicketKey, signed
from tests.support.nodes import nats_and_node, run
from tests.support.socket_operations import (
    ALLOWED,
    FORBIDDEN,
    Operation,
    check_nothing_is_done,
    holder,
    operations,
    outcome,
    peer,
    ticket,
)

FUZZED = 3000
FUZZ_SECONDS = 600


@asynccontextmanager
async def streams(directory: Path, **socket: object) -> AsyncIterator[tuple[int, jetstream.JetstreamClient]]:
    """Run a node that wants tickets, with two streams; yield its port and a client."""
    settings = {"host": "127.0.0.1", "port": 0, "require": "ticket", **socket}
    async with (
        nats_and_node(directory, socket=settings) as (url, node),
        jetstream.connect(url) as js,
    ):
        for name in ("in", "out"):
            await js.streams.create(name, f"{name}.>")
            for word in ("a", "b"):
                await js.publish(f"{name}.{word}", word.encode())
        yield node.socket_port, js


def every_operation() -> Iterator[Operation]:
    return operations(("in", "out"), (None, "in.a", "in.b", "in.>"), ("in", "out"))


HOLDERS: dict[str, tuple[tuple[str, dict[str, object]], ...]] = {
    "of a stream": (("read", {"stream": "in"}),),
    "of a subject": (("read", {"stream": "in", "subject": "in.a"}),),
    "of a namespace": (("read", {"stream": "*"}),),
    "of a group": (("group.join", {"group": "in"}),),
    "of all three": (
        ("read", {"stream": "in"}),
        ("read", {"stream": "in", "subject": "in.a"}),
        ("group.join", {"group": "in"}),
    ),
}


def expected(holding: str, operation: Operation) -> str:
    """Return what the pages say: docs/permissions.md, docs/protocol.md."""
    reads = {"of a stream", "of a subject", "of all three"}
    joins = {"of a group", "of all three"}
    if holding == "of a namespace":
        return ALLOWED if operation.group is None else FORBIDDEN
    if operation.group == "in":
        return ALLOWED if holding in joins else FORBIDDEN
    if operation.stream == "in" and holding in reads:
        is_within = holding != "of a subject" or operation.subject in {None, "in.a"}
        return ALLOWED if is_within else FORBIDDEN
    return FORBIDDEN


@pytest.mark.parametrize("holding", HOLDERS)
def test_every_operation_is_done_inside_of_the_tickets_and_forbidden_outside(
    tmp_path: Path, holding: str
) -> None:
    async def scenario() -> None:
        async with streams(tmp_path) as (port, js):
            texts = [await ticket(js, operation, **fields) for operation, fields in HOLDERS[holding]]
            for operation in every_operation():
                async with holder(port, texts) as raw:
                    told = await outcome(raw, operation.request)
                    assert told == expected(holding, operation), str(operation)

    run(scenario())


def test_without_a_ticket_or_with_a_token_that_nobody_gave_out_nothing_is_done(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with streams(tmp_path) as (port, _):
            for hello in (
                {},
                {"token": "x"},
                {"ticket": "x"},
                {"ticket": ""},
                {"token": "", "ticket": "x.y"},
            ):
                for operation in every_operation():
                    await check_nothing_is_done(port, operation.request, **hello)

    run(scenario())


def test_a_fetch_with_a_ticket_for_a_subject_has_nothing_else_in_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with streams(tmp_path) as (port, js):
            text = await ticket(js, "read", stream="in", subject="in.a")
            async with peer(port, ticket=text) as (raw, _):
                for subject in (None, "in.a"):
                    fetch = Fetch(id=1, stream="in", offset=0, subject=subject, short_circuit=True)
                    await raw.request(**json.loads(encode_request(fetch)))
                    answer, body = await raw.response()
                    assert (answer["records"], answer["next_offset"]) == (1, 2)
                    assert "file" not in answer
                    assert b"in.a" in body
                    assert b"in.b" not in body
                page = await raw.ask(op="metadata", id=2)
                assert [stream["name"] for stream in page["streams"]] == ["in"]

    run(scenario())


def changed(text: str, chance: random.Random) -> str:
    """Return a ticket with something else in some place."""
    data = bytearray(text.encode())
    way = chance.randrange(5)
    if way == 0:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(7)
    elif way == 1:
        del data[chance.randrange(len(data)) :]
    elif way == 2:
        place = chance.randrange(len(data))
        data[place:place] = chance.randbytes(chance.randrange(1, 9)).hex().encode()
    elif way == 3:
        for _ in range(chance.randrange(1, 20)):
            data[chance.randrange(len(data))] = chance.choice(b"ABCxyz019-_.")
    else:
        first, second = sorted(chance.randrange(len(data) + 1) for _ in range(2))
        data[first:second] = data[first:second][::-1]
    return data.decode("utf-8", "replace")


@pytest.mark.parametrize("seconds", [0, pytest.param(FUZZ_SECONDS, marks=pytest.mark.deep)])
def test_no_ticket_that_was_changed_forged_or_given_up_is_taken(tmp_path: Path, seconds: int) -> None:
    """In the deep run for ten minutes: as the first ticket of a connection, and as another."""
    seed = int.from_bytes(os.urandom(4)) if seconds else 1
    chance = random.Random(seed)

    async def scenario() -> None:
        async with (
            streams(tmp_path / "own", ticket_lifetime=2 * FUZZ_SECONDS) as (port, js),
            streams(tmp_path / "other") as (_, other),
        ):
            given_up = await ticket(js, "read", stream="in")
            await js.requests.ask("cluster.rotate_key", {"revoke": True}, RotateKeyResponse)
            good = [
                await ticket(js, "read", stream="in"),
                await ticket(js, "read", stream="in", subject="in.a"),
                await ticket(js, "read", stream="*"),
                await ticket(js, "group.join", group="in"),
            ]
            bad = [given_up, await ticket(other, "read", stream="in"), forged()]
            ends_at, tried = time.monotonic() + seconds, 0
            async with peer(port, ticket=good[0]) as (raw, _):
                while tried < FUZZED or time.monotonic() < ends_at:
                    is_changed = chance.random() < 0.9
                    text = changed(chance.choice(good), chance) if is_changed else chance.choice(bad)
                    if text in good:
                        continue
                    tried += 1
                    show = ShowTicket(id=tried, ticket=SecretStr(text))
                    await raw.request(**json.loads(encode_request(show)))
                    answer, _ = await raw.response()
                    assert answer["error"]["err_code"] in {"invalid_ticket", "bad_request"}, (seed, text)
                    if tried % 20 == 0:
                        async with peer(port, ticket=text) as (_, hello):
                            assert "error" in hello, (seed, text)
                assert await outcome(raw, Fetch(id=0, stream="in", offset=0)) == ALLOWED

    run(scenario(), limit_s=240 + seconds)


def forged() -> str:
    key = TicketKey("k", "00" * 32, TimestampUs(0))
    return signed(Ticket(key_id="k", expires=TimestampUs(1 << 60), stream="in"), key)
