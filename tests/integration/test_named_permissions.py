"""Rights by name: of one consumer, of who only watches groups, of one team."""

import asyncio
import json
from pathlib import Path

import pytest

from envelope.errors import InvalidCursor, Unauthorized
from envelope.types import Offset
from jetstream.client.admin.group_lag import CursorMove
from tests.conftest import StartNatsServer
from tests.support.nats_site import NODE, site, users_config
from tests.support.nodes import run
from tests.support.sockets import until

CONSUMER_RIGHTS = [
    "jetstream.api.cluster.info",
    "jetstream.api.cursor.get.billing",
    "jetstream.api.cursors.plain.billing.*",
]


def test_a_consumer_commits_under_its_own_name_and_no_other(
    tmp_path: Path, start_nats_server: StartNatsServer
) -> None:
    """The right is that of the subject: a key that says otherwise is refused by the node."""
    server = start_nats_server(users_config({"billing": CONSUMER_RIGHTS}))

    async def scenario() -> None:
        async with (
            site(tmp_path / "data", server) as there,
            there.party("billing") as js,
            there.party(NODE) as other,
        ):
            await js.cursors.commit("billing", "orders", 42)
            await other.cursors.commit("shipping", "orders", 7)
            with pytest.raises(Unauthorized, match=r"plain\.shipping\.orders"):
                await js.publish("jetstream.api.cursors.plain.shipping.orders", b"0")
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
    server = start_nats_server(users_config({"watcher": WATCHER_RIGHTS}))

    async def scenario() -> None:
        async with (
            site(tmp_path / "data", server) as there,
            there.party("watcher") as js,
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
            with pytest.raises(Unauthorized, match=r"group\.reset\.billing"):
                await js.groups.move("billing", [move])
            with pytest.raises(Unauthorized, match=r"group\.delete\.billing"):
                await js.groups.delete("billing")
            assert (await js.groups.lag("billing")).partitions == (partition,)

    run(scenario())


TEAM_RIGHTS = [
    "jetstream.api.cluster.info",
    "jetstream.api.stream.*.shop.>",
    "jetstream.api.stream.list.shop",
    "jetstream.api.group.*.shop.>",
    "jetstream.api.read.shop.>",
    "shop.>",
]


def test_a_team_administers_the_streams_and_groups_of_its_namespace_and_no_others(
    tmp_path: Path, start_nats_server: StartNatsServer
) -> None:
    server = start_nats_server(users_config({"team": TEAM_RIGHTS}))

    async def scenario() -> None:
        async with (
            site(tmp_path / "data", server, names_in_subjects="required") as there,
            there.party("team") as team,
            there.party(NODE) as everybody,
        ):
            await everybody.streams.create("hr/salaries", "hr.>")
            await team.streams.create("shop/eu/orders", "shop.>", partitions=2, partition_by="key")
            await team.streams.update("shop/eu/orders", labels={"team": "shop"})
            assert (await team.publish("shop.1", b"x")).stream in {"shop/eu/orders/0", "shop/eu/orders/1"}
            assert (await team.streams.info("shop/eu/orders/1")).state == "online"
            assert [stream.name for stream in await team.streams.list("shop/")]
            await team.groups.reset("shop/packers", "earliest", streams=["shop/eu/orders"])
            for act in (
                team.streams.delete("hr/salaries"),
                team.streams.info("hr/salaries"),
                team.streams.create("shopping", "shopping"),
                team.streams.list(),
                team.streams.list("hr/"),
                team.groups.delete("packers"),
                team.streams.lookup("hr.1"),
            ):
                with pytest.raises(Unauthorized, match=r"publish on 'jetstream\.api\."):
                    await act
            await team.streams.delete("shop/eu/orders")
            assert [stream.name for stream in await everybody.streams.list()] == ["hr/salaries"]

    run(scenario())


def test_many_who_are_denied_the_same_at_once_are_all_told_over_a_connection_that_lives(
    tmp_path: Path, start_nats_server: StartNatsServer
) -> None:
    server = start_nats_server(users_config({"team": TEAM_RIGHTS}))

    async def scenario() -> None:
        async with site(tmp_path / "data", server) as there, there.party("team") as team:
            asked = [team.streams.info("hr/salaries") for _ in range(50)]
            answers = await asyncio.gather(*asked, return_exceptions=True)
            assert {type(answer) for answer in answers} == {Unauthorized}
            assert await team.streams.list("shop/") == []
            assert team.nats.stats["reconnects"] == 0

    run(scenario())


@pytest.mark.parametrize("names", ["optional", "required"])
def test_a_name_in_the_payload_alone_is_taken_where_the_setting_lets_it(
    tmp_path: Path, start_nats_server: StartNatsServer, names: str
) -> None:
    server = start_nats_server(users_config({"team": TEAM_RIGHTS}))

    async def scenario() -> None:
        async with site(tmp_path / "data", server, names_in_subjects=names) as there, there.party(NODE) as js:
            await js.streams.create("hr/salaries", "hr.>")
            told = await js.nats.request("jetstream.api.stream.info", b'{"name":"hr/salaries"}', timeout=30)
            code = json.loads(told.data).get("error", {}).get("err_code")
            assert code == ("bad_request" if names == "required" else None)
            lies = b'{"name":"hr/salaries"}'
            told = await js.nats.request("jetstream.api.stream.delete.shop.x", lies, timeout=30)
            assert json.loads(told.data)["error"]["err_code"] == "bad_request"
            assert (await js.streams.info("hr/salaries")).state == "online"

    run(scenario())
