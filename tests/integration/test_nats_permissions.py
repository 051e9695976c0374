"""The rights in docs/operations.md are enough, each of them is needed, and what lacks one is told as it says.

Every server here admits four parties with the rights that the page's table gives them, or one right less.
That of `_R_.>` matters to other accounts (`test_nats_accounts`).
"""

import asyncio
import json
import logging
import re
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nats
import pytest

import jetstream
from envelope.errors import DeadlinePassed, InvalidCursor, NoResponders, Unauthorized
from envelope.types import Offset
from jetstream import JetstreamClient
from jetstream.client.admin.group_lag import CursorMove
from jetstream.node.node import Node
from tests.conftest import StartNatsServer
from tests.support.commands import REPOSITORY, CommandProcess
from tests.support.nats_server import NatsServer
from tests.support.nodes import WAIT_SECONDS, nats_and_node, node_config, run
from tests.support.pauses import pause
from tests.support.sockets import until

PAGE = (REPOSITORY / "docs" / "operations.md").read_text(encoding="utf-8")
SUBJECT = "orders.>"
PASSWORD = "pw"
NODE, PUBLISHER, ADMINISTRATOR, READER = "node", "publisher", "administrator", "reader"
API, INBOX = "jetstream.api.>", "_INBOX.>"
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


@dataclass(frozen=True, slots=True)
class Site:
    """A node under its own rights, and how its parties reach it."""

    url: str
    node: Node
    told: list[str]
    """What NATS said to the parties' error callbacks."""

    @asynccontextmanager
    async def party(self, name: str, patience_s: float = 30) -> AsyncIterator[JetstreamClient]:
        """Connect as one of the parties, who waits so long for an answer."""

        async def tell(error: Exception) -> None:
            self.told.append(str(error))

        async with jetstream.connect(
            self.url, user=name, password=PASSWORD, request_timeout=patience_s, error_cb=tell
        ) as client:
            yield client

    async def values(self) -> list[bytes | None]:
        """Read the stream by socket alone: that needs no right of NATS."""
        async with jetstream.connect(socket=f"127.0.0.1:{self.node.socket_port}") as client:
            return [record.value async for record in client.read("orders")]

    async def until_stored(self, *values: bytes) -> None:
        """Wait until these are in the stream; none: there are none."""
        async with asyncio.timeout(WAIT_SECONDS):
            while await self.values() != list(values):
                await pause()

    async def until_created(self) -> None:
        """Wait for the stream that `create_another` creates."""
        await until(lambda: self.node.stream("more") is not None)


@asynccontextmanager
async def site(data: Path, server: NatsServer) -> AsyncIterator[Site]:
    config = node_config(data, server.url, nats={"urls": [server.url], "user": NODE, "password": PASSWORD})
    async with Node(config) as node:
        yield Site(server.url, node, [])


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
    assert len(violations(server)) == 3, "what any node may answer, in two shapes, and what this one alone"
    assert 'Permissions Violation for Subscription to "jetstream.api.*"' in node_log.text


def test_a_node_that_may_not_publish_to_inboxes_stores_and_cannot_say_so(
    data: Path, start_nats_server: StartNatsServer, node_log: pytest.LogCaptureFixture
) -> None:
    server = start_nats_server(without(Right(NODE, "publish", INBOX)))

    async def scenario() -> None:
        async with site(data, server) as place:
            async with place.party(PUBLISHER) as client:
                with pytest.raises(DeadlinePassed):
                    await publish(client)
            async with place.party(ADMINISTRATOR, BRIEFLY_S) as client:
                with pytest.raises(DeadlinePassed):
                    await create_another(client)
            await place.until_stored(b"x")
            await place.until_created()
            assert place.told == []

    run(scenario())
    assert 'Permissions Violation for Publish to "_INBOX.' in node_log.text


async def publish(client: JetstreamClient) -> None:
    await client.publish("orders.eu", b"x", timeout=BRIEFLY_S)


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
def test_any_other_party_without_a_right_hears_nothing_and_is_told_why(
    data: Path, start_nats_server: StartNatsServer, right: Right
) -> None:
    server = start_nats_server(without(right))

    async def scenario() -> None:
        async with site(data, server) as place:
            async with place.party(right.party, BRIEFLY_S) as client:
                with pytest.raises(DeadlinePassed):
                    await ACTS[right.party](client)
                await until(lambda: bool(place.told))
            word = "subscription" if right.verb == "subscribe" else "publish"
            assert all(f"permissions violation for {word} to" in text for text in place.told)
            done = right.verb == "subscribe"
            await place.until_stored(*([b"x"] if done and right.party == PUBLISHER else []))
            if done and right.party == ADMINISTRATOR:
                await place.until_created()
            else:
                assert place.node.stream("more") is None

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
            arguments = ("pub", "orders.eu", "x", "--timeout", "0.5", "--json")
            with CommandProcess(*arguments, environment=identity) as process:
                code, _, error = await asyncio.to_thread(process.finished)
            await place.until_stored(*([b"x"] if verb == "subscribe" else []))
            return code, json.loads(error)["error"]

    code, error = run(scenario())
    assert "permissions violation" in error["description"]
    if verb == "publish":
        assert (code, error["err_code"]) == (4, "unauthorized")
    else:
        assert (code, error["err_code"]) == (5, "deadline_passed")


CONSUMER_RIGHTS = [
    "jetstream.api.cluster.info",
    "jetstream.api.cursor.get",
    "jetstream.api.cursors.plain.billing.*",
]


def test_a_consumer_commits_under_its_own_name_and_no_other(
    tmp_path: Path, start_nats_server: StartNatsServer
) -> None:
    """The right is that of the subject: a key that says otherwise is refused by the node."""
    everything = f'{{ user: {NODE}, password: {PASSWORD}, permissions: {{ publish: ">", subscribe: ">" }} }}'
    consumer = (
        f"{{ user: billing, password: {PASSWORD}, permissions: "
        f'{{ publish: {{ allow: {json.dumps(CONSUMER_RIGHTS)} }}, subscribe: "{INBOX}" }} }}'
    )
    server = start_nats_server(f"authorization {{ users: [ {everything}, {consumer} ] }}")

    async def scenario() -> None:
        async with (
            site(tmp_path / "data", server) as there,
            there.party("billing") as js,
            there.party(NODE) as other,
        ):
            await js.cursors.commit("billing", "orders", 42)
            await other.cursors.commit("shipping", "orders", 7)
            with pytest.raises(DeadlinePassed):
                await js.publish("jetstream.api.cursors.plain.shipping.orders", b"0", timeout=BRIEFLY_S)
            with pytest.raises(InvalidCursor):
                await js.publish(
                    "jetstream.api.cursors.plain.billing.orders", b"0", key="plain/shipping/orders"
                )
            assert (await js.cursors.get("billing", "orders")).offset == 42
            assert (await other.cursors.get("shipping", "orders")).offset == 7
            await until(lambda: any("cursors.plain.shipping" in told for told in there.told))

    run(scenario())


WATCHER_RIGHTS = [
    "jetstream.api.group.list",
    "jetstream.api.group.info",
    "jetstream.api.stream.info",
]


def test_a_watcher_of_groups_sees_their_lag_and_changes_nothing(
    tmp_path: Path, start_nats_server: StartNatsServer
) -> None:
    everything = f'{{ user: {NODE}, password: {PASSWORD}, permissions: {{ publish: ">", subscribe: ">" }} }}'
    watcher = (
        f"{{ user: watcher, password: {PASSWORD}, permissions: "
        f'{{ publish: {{ allow: {json.dumps(WATCHER_RIGHTS)} }}, subscribe: "{INBOX}" }} }}'
    )
    server = start_nats_server(f"authorization {{ users: [ {everything}, {watcher} ] }}")

    async def scenario() -> None:
        async with (
            site(tmp_path / "data", server) as there,
            there.party("watcher") as js,
            there.party("watcher", BRIEFLY_S) as refused,
            there.party(NODE) as other,
        ):
            await other.streams.create("orders", "orders.>")
            await other.publish("orders.x", b"0")
            await other.groups.reset("billing", "earliest", streams=["orders"])
            assert [each.group for each in await js.groups.list()] == ["billing"]
            lag = await js.groups.lag("billing")
            assert lag.total == 1
            [partition] = lag.partitions
            move = CursorMove("orders", 0, 0, Offset(1), (await js.streams.info("orders")).incarnation)
            with pytest.raises(DeadlinePassed):
                await refused.groups.move("billing", [move])
            with pytest.raises(DeadlinePassed):
                await refused.groups.delete("billing")
            assert (await js.groups.lag("billing")).partitions == (partition,)

    run(scenario())
