"""The rights in docs/operations.md are enough, each of them is needed, and what lacks one is told as it says.

Every server here admits four parties with the rights that the page's table gives them, or one right less.
That of `_R_.>` matters to other accounts (`test_nats_accounts`).
"""

import asyncio
import json
import logging
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nats
import pytest

import jetstream
from envelope.errors import DeadlinePassed, NoResponders, Unauthorized
from jetstream import JetstreamClient
from tests.conftest import StartNatsServer
from tests.support.commands import REPOSITORY, CommandProcess
from tests.support.nats_server import NatsServer
from tests.support.nats_site import INBOX, NODE, PASSWORD, Site, site
from tests.support.nodes import WAIT_SECONDS, nats_and_node, run
from tests.support.sockets import until

PAGE = (REPOSITORY / "docs" / "operations.md").read_text(encoding="utf-8")
SUBJECT = "orders.>"
PUBLISHER, ADMINISTRATOR, READER = "publisher", "administrator", "reader"
API = "jetstream.api.>"
BRIEFLY_S = 0.3
"""How long one waits who hears nothing; what was done all the same may be done later."""


@dataclass(frozen=True, slots=True)
class Right:
    """A party may do something with a subject."""

    party: str
    verb: str
    """``subscribe`` or ``publish``."""
    subject: str


def rights_on_the_page() -> list[Right]:
    """Read the table `party | may subscribe to | may publish to`; "its subjects" are `SUBJECT`."""
    rows = re.findall(r"^  \| (?:the|an?) (\w+) \| (.+) \| (.+) \|$", PAGE, re.MULTILINE)
    return [
        Right(party, verb, subject)
        for party, *cells in rows
        for verb, cell in zip(("subscribe", "publish"), cells, strict=True)
        for subject in [*([SUBJECT] if "subjects" in cell else []), *re.findall(r"`([\w.>]+)`", cell)]
    ]


RIGHTS = rights_on_the_page()


def server_config(rights: list[Right]) -> str:
    """Return an authorization block that gives ``rights`` and no other."""

    def allowed(party: str, verb: str) -> str:
        subjects = [right.subject for right in rights if (right.party, right.verb) == (party, verb)]
        return f"{verb}: {{ allow: {json.dumps(subjects)} }}" if subjects else f'{verb}: {{ deny: ">" }}'

    users = [
        f"{{ user: {party}, password: {PASSWORD}, "
        f"permissions: {{ {allowed(party, 'subscribe')}, {allowed(party, 'publish')} }} }}"
        for party in (NODE, PUBLISHER, ADMINISTRATOR, READER)
    ]
    return f"authorization {{ users: [ {', '.join(users)} ] }}"


def violations(server: NatsServer) -> set[str]:
    """What was refused; a node asks for its subscriptions again."""
    return {line.partition("Violation")[2] for line in server.log_lines if "Violation" in line}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A node's directory with the stream ``orders``, empty, of which each test gets a copy."""
    directory = tmp_path_factory.mktemp("made")

    async def scenario() -> None:
        async with nats_and_node(directory) as (url, _), jetstream.connect(url) as client:
            await client.streams.create("orders", SUBJECT)

    run(scenario())
    return directory / "data"


@pytest.fixture
def data(tmp_path: Path, made: Path) -> Path:
    """A node's directory with the stream ``orders``, empty."""
    return shutil.copytree(made, tmp_path / "data")


@pytest.fixture
def node_log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, logger="jetstream"):
        yield caplog


def without(right: Right) -> str:
    assert right in RIGHTS, f"{right} is not on the page"
    return server_config([other for other in RIGHTS if other != right])


def test_the_page_names_the_rights_of_four_parties() -> None:
    assert {right.party for right in RIGHTS} == {NODE, PUBLISHER, ADMINISTRATOR, READER}
    assert len(RIGHTS) == 10


def test_the_rights_on_the_page_are_enough_for_everybody(
    tmp_path: Path, start_nats_server: StartNatsServer
) -> None:
    server = start_nats_server(server_config(RIGHTS))

    async def live(place: Site) -> None:
        async with place.party(ADMINISTRATOR) as client:
            streams = client.streams
            await streams.create("orders", SUBJECT)
            await streams.create("shared", "orders.eu", group="workers", ack="none")
            await streams.update("shared", labels={"team": "shop"})
            assert {found.name for found in await streams.list()} == {"orders", "shared"}
            assert {found.name for found in await streams.lookup("orders.eu")} == {"orders", "shared"}
            assert (await client.requests.cluster_info()).streams == 2
        async with place.party(PUBLISHER) as client:
            ack = await client.publish("orders.eu", b"one", message_id="1")
            assert (await client.publish("orders.eu", b"one", message_id="1")).duplicate
        plain = await nats.connect(place.url, user=PUBLISHER, password=PASSWORD)
        async with plain:
            plain_ack = await plain.jetstream().publish("orders.us", b"two")
            assert (plain_ack.stream, plain_ack.seq) == ("orders", ack.offset + 2)
        async with place.party(READER) as client:
            assert [record.value async for record in client.read("orders", start=ack.offset)] == [
                b"one",
                b"two",
            ]
        async with place.party(ADMINISTRATOR) as client:
            assert (await client.streams.truncate("orders", before=1)).log_start_offset == 1
            assert (await client.streams.info("orders")).state == "online"
            await client.streams.delete("shared")

    async def scenario() -> None:
        for _ in range(2):  # the second time the node finds its streams and attaches them at the start
            async with site(tmp_path / "data", server) as place:
                await live(place)
                assert place.told == []

    run(scenario())
    assert violations(server) == set()


def test_a_node_that_may_not_subscribe_to_a_subject_stores_nothing_of_it(
    tmp_path: Path, start_nats_server: StartNatsServer, node_log: pytest.LogCaptureFixture
) -> None:
    server = start_nats_server(without(Right(NODE, "subscribe", SUBJECT)))

    async def scenario() -> None:
        async with site(tmp_path / "data", server) as place:
            async with place.party(ADMINISTRATOR) as client:
                with pytest.raises(Unauthorized, match=r"subscribe to 'orders\.>'"):
                    await client.streams.create("orders", SUBJECT)
                info = await client.streams.info("orders")
                assert info.state == "offline"
                assert SUBJECT in str(info.reason)
            async with place.party(PUBLISHER) as client:
                with pytest.raises(NoResponders):
                    await client.publish("orders.eu", b"x")

    run(scenario())
    assert len(violations(server)) == 1
    assert 'Permissions Violation for Subscription to "orders.>"' in node_log.text
    assert "runbook=RB-03" in node_log.text


def test_a_node_that_may_not_subscribe_to_its_api_answers_no_request_and_stores_all_the_same(
    data: Path, start_nats_server: StartNatsServer, node_log: pytest.LogCaptureFixture
) -> None:
    server = start_nats_server(without(Right(NODE, "subscribe", API)))

    async def scenario() -> None:
        async with site(data, server) as place:
            async with place.party(ADMINISTRATOR) as client:
                with pytest.raises(NoResponders):
                    await client.streams.info("orders")
            async with place.party(PUBLISHER) as client:
                assert (await client.publish("orders.eu", b"x")).offset == 0
            assert await place.values() == [b"x"]

    run(scenario())
    assert len(violations(server)) == 8, "what any node may answer, in seven shapes, and what this one alone"
    assert 'Permissions Violation for Subscription to "jetstream.api.*"' in node_log.text


def test_a_node_that_may_not_publish_to_inboxes_stores_and_cannot_say_so(
    data: Path, start_nats_server: StartNatsServer, node_log: pytest.LogCaptureFixture
) -> None:
    server = start_nats_server(without(Right(NODE, "publish", INBOX)))

    async def scenario() -> None:
        async with site(data, server) as place:
            async with place.party(PUBLISHER) as client:
                with pytest.raises(DeadlinePassed):
                    await client.publish("orders.eu", b"x", timeout=BRIEFLY_S)
            async with place.party(ADMINISTRATOR, BRIEFLY_S) as client:
                with pytest.raises(DeadlinePassed):
                    await create_another(client)
            await place.until_stored(b"x")
            await place.until_created()
            assert place.told == []

    run(scenario())
    assert 'Permissions Violation for Publish to "_INBOX.' in node_log.text


async def publish(client: JetstreamClient) -> None:
    await client.publish("orders.eu", b"x", timeout=WAIT_SECONDS)


async def create_another(client: JetstreamClient) -> None:
    await client.streams.create("more", "more")


async def read(client: JetstreamClient) -> None:
    async for _ in client.read("orders", retry_s=0):
        raise AssertionError("the stream is empty")


ACTS = {PUBLISHER: publish, ADMINISTRATOR: create_another, READER: read}


@pytest.mark.parametrize(
    "right",
    [right for right in RIGHTS if right.party != NODE],
    ids=lambda right: f"{right.party}-{right.verb}",
)
def test_any_other_party_without_a_right_is_told_at_once_which(
    data: Path, start_nats_server: StartNatsServer, right: Right
) -> None:
    server = start_nats_server(without(right))

    async def scenario() -> None:
        async with site(data, server) as place:
            async with place.party(right.party) as client:
                with pytest.raises((Unauthorized, DeadlinePassed)) as caught:
                    await ACTS[right.party](client)
                await until(lambda: bool(place.told))
            assert f"NATS does not let this user {right.verb}" in caught.value.description
            may_be_done = isinstance(caught.value, DeadlinePassed)
            assert not may_be_done or right.verb == "subscribe", "what is not sent is not done"
            await place.until_stored(*([b"x"] if may_be_done and right.party == PUBLISHER else []))
            if may_be_done and right.party == ADMINISTRATOR:
                await place.until_created()
            else:
                assert not place.is_created()

    run(scenario())


@pytest.mark.parametrize("verb", ["subscribe", "publish"])
def test_the_command_knows_a_message_that_was_not_sent_from_one_whose_ack_cannot_come(
    data: Path, start_nats_server: StartNatsServer, verb: str
) -> None:
    subject = INBOX if verb == "subscribe" else SUBJECT
    server = start_nats_server(without(Right(PUBLISHER, verb, subject)))
    identity = {
        "JETSTREAM_NATS": server.url,
        "JETSTREAM_NATS_USER": PUBLISHER,
        "JETSTREAM_NATS_PASSWORD": PASSWORD,
    }

    async def scenario() -> tuple[int, dict[str, Any]]:
        async with site(data, server) as place:
            arguments = ("pub", "orders.eu", "x", "--timeout", "60", "--json")
            with CommandProcess(*arguments, environment=identity) as process:
                code, _, error = await asyncio.to_thread(process.finished)
            await place.until_stored(*([b"x"] if verb == "subscribe" else []))
            return code, json.loads(error)["error"]

    code, error = run(scenario())
    assert f"does not let this user {verb}" in error["description"]
    if verb == "publish":
        assert (code, error["err_code"]) == (4, "unauthorized")
    else:
        assert (code, error["err_code"]) == (5, "deadline_passed")
