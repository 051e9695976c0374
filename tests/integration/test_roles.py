"""The roles of docs/permissions.md: each can do what the page says, and NATS refuses everything else."""

import asyncio
import copy
import dataclasses
import json
import logging
import re
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

import jetstream
from envelope.errors import NoResponders, Unauthorized
from envelope.namespace_errors import SubjectNotAllowed
from jetstream.cli.output.exit_codes import ExitCode
from metadata.api.requests import REQUESTS
from metadata.api.ticket_responses import RotateKeyResponse
from tests.conftest import StartNatsServer
from tests.support.commands import CommandProcess
from tests.support.nats_operator import OperatorSite
from tests.support.nodes import WAIT_SECONDS, run
from tests.support.nsc_commands import accounts_of
from tests.support.role_matrix import EUROPEAN, cases, check_matrix
from tests.support.role_sites import (
    ROLES,
    SITES,
    RoleSite,
    commands,
    configuration,
    configured_site,
    credentials_site,
)
from tests.support.sockets import until


def has_length(items: list[str], length: int) -> bool:
    return len(items) == length


@pytest.fixture(params=list(SITES))
def there(request: pytest.FixtureRequest, tmp_path: Path, start_nats_server: StartNatsServer) -> RoleSite:
    """A server with the roles, in one of the page's ways."""
    return SITES[request.param](tmp_path, start_nats_server)


def test_the_matrix_has_every_request() -> None:
    for case in cases():
        REQUESTS[case.operation].model_validate(case.fields(exists=False))
    assert {case.operation for case in cases()} == REQUESTS.keys()


def test_every_request_is_answered_or_refused_by_the_right_that_is_missing(
    tmp_path: Path, there: RoleSite
) -> None:
    run(check_matrix(there, there.node(tmp_path / "data")))


@pytest.mark.parametrize(
    ("right", "other"),
    [
        ('"jetstream.api.group.join.shop.billing"', '"jetstream.api.>"'),
        (f"jetstream.api.read.shop.orders.subject.{EUROPEAN}", "jetstream.api.read.shop.orders.subject.>"),
        ('subject: "jetstream.api.read.shop.>"', 'subject: "jetstream.api.read.shop.*"'),
        ('"jetstream.api.stream.*.shop.>"\n', '"jetstream.api.stream.*.>"\n'),
        ('"jetstream.api.cursor.get.reader", ', ""),
        ('{ service: { account: LOG, subject: "jetstream.api.cursor.>" } }', ""),
    ],
    ids=[
        *("a member who may all", "a reader of all subjects", "an import without patterns"),
        *("a team that sees others", "a reader without its cursor", "an import less"),
    ],
)
def test_the_matrix_notices_a_right_too_many_and_one_too_few(
    tmp_path: Path, start_nats_server: StartNatsServer, right: str, other: str
) -> None:
    recipe = configuration()
    assert recipe.count(right) == 1
    there = configured_site(tmp_path, start_nats_server, recipe.replace(right, other))
    with pytest.RaisesGroup(AssertionError):
        run(check_matrix(there, there.node(tmp_path / "data")))


def test_an_account_without_an_activation_reaches_nothing(
    tmp_path: Path, start_nats_server: StartNatsServer
) -> None:
    """In operator mode an account says itself what it imports: private exports want more than that."""
    accounts = {name: copy.deepcopy(account) for name, account in accounts_of(commands()).items()}
    shop = accounts["SHOP"]
    shop.imports = [dataclasses.replace(each, has_activation=False) for each in shop.imports]
    operator = OperatorSite(accounts)
    operator.write_credentials(tmp_path)
    there = credentials_site(tmp_path, start_nats_server(operator.server_config()))

    async def scenario() -> None:
        async with there.node(tmp_path / "data"), there.connect("operator") as js:
            await js.streams.create("shop/orders", "shop.orders.>")
            async with there.connect("publisher") as publisher:
                with pytest.raises(NoResponders):
                    await publisher.publish("shop.orders.eu", b"x")
            async with there.connect("admin") as admin:
                with pytest.raises(NoResponders):
                    await admin.streams.delete("shop/orders")
            assert (await js.streams.info("shop/orders")).log_end_offset == 0

    run(scenario())


def test_a_publisher_gets_the_acks_of_its_subjects_and_publishes_on_no_others(
    tmp_path: Path, there: RoleSite
) -> None:
    async def scenario() -> None:
        async with (
            there.node(tmp_path / "data"),
            there.connect("operator") as operator,
            there.connect("publisher") as js,
        ):
            await operator.streams.create("shop/orders", "shop.orders.>")
            await operator.streams.create("hr/eu", "shop.orders.eu")
            assert (await js.publish("shop.orders.us", b"1", message_id="1")).offset == 0
            assert (await js.publish("shop.orders.us", b"1", message_id="1")).duplicate
            acks = await js.publish_all([("shop.orders.us", b"%d" % each) for each in range(100)])
            assert [ack.offset for ack in acks] == list(range(1, 101))
            both = await js.publish("shop.orders.eu", b"x", streams=["shop/orders", "hr/eu"])
            assert [ack.stream for ack in both] == ["shop/orders", "hr/eu"]
            plain = await js.nats.jetstream().publish("shop.orders.us", b"plain")
            assert (plain.stream, plain.seq) == ("shop/orders", 103)
            for subject in ("shop.other", "hr.eu", "jetstream.api.cursors.plain.reader.orders"):
                with pytest.raises(Unauthorized, match=f"publish on '{subject}'"):
                    await js.publish(subject, b"x")
            for role in ROLES:
                if role not in ("publisher", "operator"):
                    async with there.connect(role) as other:
                        with pytest.raises(Unauthorized, match="publish on 'shop"):
                            await other.publish("shop.orders.us", b"x")
            assert (await operator.streams.info("shop/orders")).log_end_offset == 103

    run(scenario())


def test_a_team_administers_partitioned_and_nested_streams_and_lists_its_own(
    tmp_path: Path, there: RoleSite
) -> None:
    async def scenario() -> None:
        async with (
            there.node(tmp_path / "data", api={"names_in_subjects": "required"}),
            there.connect("operator") as operator,
            there.connect("admin") as js,
        ):
            await operator.streams.create("hr/salaries", "shop.orders.hr")
            await operator.groups.reset("hr/clerks", "earliest", streams=["hr/salaries"])
            await js.streams.create("shop/eu/orders", "shop.orders.>", partitions=2, partition_by="key")
            await js.streams.create("shop/plain", "shop.orders.plain")
            await js.streams.update("shop/eu/orders", labels={"team": "shop"})
            assert (await js.streams.info("shop/eu/orders/1")).state == "online"
            assert [stream.name for stream in await js.streams.list("shop/")] == [
                "shop/eu/orders/0",
                "shop/eu/orders/1",
                "shop/plain",
            ]
            assert len(await js.streams.list("shop/eu/")) == 2
            await js.groups.reset("shop/packers", "earliest", streams=["shop/eu/orders"])
            assert [group.group for group in await js.groups.list("shop/")] == ["shop/packers"]
            await js.groups.delete("shop/packers")
            for act in (js.streams.list(), js.streams.list("hr/"), js.groups.list("hr/"), js.groups.list()):
                with pytest.raises(Unauthorized, match="publish on"):
                    await act
            await js.streams.delete("shop/eu/orders")
            assert [stream.name for stream in await operator.streams.list()] == ["hr/salaries", "shop/plain"]

    run(scenario())


def test_a_team_stores_nothing_that_the_nodes_may_not_subscribe_to(tmp_path: Path, there: RoleSite) -> None:
    async def scenario() -> None:
        async with there.node(tmp_path / "data"), there.connect("admin") as js:
            with pytest.raises(Unauthorized, match=r"subscribe to 'hr\.>'"):
                await js.streams.create("shop/others", "hr.>")
            assert (await js.streams.info("shop/others")).state == "offline"

    run(scenario())


def test_a_team_stores_what_all_request_unless_an_operator_limits_its_subjects(
    tmp_path: Path, there: RoleSite
) -> None:
    async def scenario() -> None:
        async with (
            there.node(tmp_path / "data"),
            there.connect("operator") as operator,
            there.connect("admin") as js,
        ):
            everything = ("jetstream.api.>", "_INBOX.>")
            await js.streams.create("shop/spy", everything[0], ack="none")
            await operator.streams.create("hr/salaries", "shop.orders.hr")
            heard = [record.subject async for record in js.read("shop/spy")]
            assert "jetstream.api.stream.create.hr.salaries" in heard
            await operator.namespaces.limit("shop", subjects=["shop.orders.eu.>"])
            for subject in (*everything, "shop.orders.us.>", "shop.orders.>"):
                with pytest.raises(SubjectNotAllowed):
                    await js.streams.create("shop/others", subject, ack="none")
            await js.streams.create("shop/orders", "shop.orders.eu.>")
            with pytest.raises(Unauthorized, match=r"publish on 'jetstream\.api\.namespace\.limit\.shop'"):
                await js.namespaces.limit("shop", subjects=None)

    run(scenario())


def test_the_audit_names_the_user_that_has_changed_something(
    tmp_path: Path, there: RoleSite, caplog: pytest.LogCaptureFixture
) -> None:
    """In operator mode NATS calls a user by its public key, and puts the name beside it."""

    async def scenario() -> None:
        async with (
            there.node(tmp_path / "data"),
            there.connect("operator") as operator,
            there.connect("admin") as js,
        ):
            await js.streams.create("shop/orders", "shop.orders.>")
            await js.groups.reset("shop/billing", datetime(2026, 1, 1, tzinfo=UTC), streams=["shop/orders"])
            await operator.namespaces.limit("shop", streams=1)
            await operator.requests.ask("cluster.rotate_key", {}, RotateKeyResponse)

    with caplog.at_level(logging.INFO, logger="jetstream.audit"):
        run(scenario())
    events = [json.loads(each.getMessage()) for each in caplog.records if each.name == "jetstream.audit"]
    users = ((each["client"].get("name_tag", each["client"]["user"]), each["operation"]) for each in events)
    assert list(users) == [
        ("admin", "stream.create"),
        ("admin", "group.reset"),
        ("operator", "namespace.limit"),
        ("operator", "cluster.rotate_key"),
    ]


def test_a_reader_and_a_member_have_tickets_by_their_rights_and_nothing_else(
    tmp_path: Path, there: RoleSite
) -> None:
    subjects = ("shop.orders.eu.de", "shop.orders.us.ny", "shop.orders.eu.fr")

    async def scenario() -> None:
        async with (
            there.node(tmp_path / "data"),
            there.connect("operator") as operator,
            there.connect("publisher") as publisher,
            there.connect("reader") as reader,
            there.connect("member") as member,
        ):
            halves = {"partitions": 2, "partition_by": "subject"}
            await operator.streams.create("shop/orders", "shop.orders.>", **halves)
            for subject in subjects:
                await publisher.publish(subject, b"x")
            european = [
                record.subject
                for partition in ("shop/orders/0", "shop/orders/1")
                async for record in reader.read(partition, subject=EUROPEAN)
            ]
            assert sorted(european) == ["shop.orders.eu.de", "shop.orders.eu.fr"]
            await reader.cursors.commit("reader", "orders", 1)
            assert (await reader.cursors.get("reader", "orders")).offset == 1
            async with member.consume("shop/orders", group="shop/billing") as consumer:
                got = [(await anext(consumer)).subject for _ in subjects]
                await consumer.commit()
            assert sorted(got) == sorted(subjects)
            for role in ("admin", "operator"):
                async with there.connect(role) as js:
                    assert (await js.groups.lag("shop/billing")).total == 0

    run(scenario())


def test_the_client_names_the_right_that_is_missing_to_read_or_to_be_a_member(
    tmp_path: Path, there: RoleSite
) -> None:
    """By what NATS says, and not because the time is over: that would be `DeadlinePassed`."""

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(there.node(tmp_path / "data"))
            js = {role: await stack.enter_async_context(there.connect(role)) for role in ROLES}
            await js["operator"].streams.create("shop/orders", "shop.orders.>")
            await js["operator"].streams.create("hr/salaries", "shop.orders.hr")

            async def consumed(role: str, stream: str, group: str) -> None:
                async with js[role].consume(stream, group=group) as consumer:
                    await anext(consumer)

            whole, others = "read.shop.orders", "read.hr.salaries"
            narrow = f"{whole}.subject.shop.orders.us.>"
            for act, missing in (
                (js["publisher"].read_table("shop/orders"), whole),
                (js["reader"].read_table("shop/orders"), whole),
                (js["reader"].read_table("shop/orders", subject="shop.orders.us.>"), narrow),
                (js["reader"].read_table("hr/salaries", subject=EUROPEAN), f"{others}.subject.{EUROPEAN}"),
                (js["member"].read_table("hr/salaries"), others),
                (js["admin"].read_table("hr/salaries"), others),
                (js["reader"].cursors.commit("other", "orders", 1), "cursors.plain.other.orders"),
                (consumed("reader", "shop/orders", "shop/billing"), "group.join.shop.billing"),
                (consumed("member", "shop/orders", "shop/packers"), "group.join.shop.packers"),
                (consumed("member", "hr/salaries", "shop/billing"), others),
                (consumed("admin", "hr/salaries", "hr/clerks"), "group.join.hr.clerks"),
            ):
                with pytest.raises(Unauthorized, match=re.escape(f"publish on 'jetstream.api.{missing}'")):
                    await act

    run(scenario())


def test_nobody_hears_the_answers_the_messages_or_the_requests_of_others(
    tmp_path: Path, there: RoleSite
) -> None:
    others = (">", "shop.orders.>", "_INBOX.>", "jetstream.api.>", "_R_.>", "$SYS.>")

    async def scenario() -> None:
        async with there.node(tmp_path / "data"):
            for role, neighbour in zip(ROLES, (*ROLES[1:], ROLES[0]), strict=True):
                refusals: list[str] = []

                async def refused(error: Exception, refusals: list[str] = refusals) -> None:
                    refusals.append(str(error))

                async with there.connect(role, error_cb=refused) as js:
                    wanted = (*others, f"_INBOX_{neighbour}.>")
                    for subject in wanted:
                        await js.nats.subscribe(subject)
                    await until(partial(has_length, refusals, len(wanted)))
                for subject, refusal in zip(wanted, refusals, strict=True):
                    assert f'permissions violation for subscription to "{subject.lower()}"' in refusal

    run(scenario())


def test_the_subjects_on_which_nodes_speak_lead_nowhere_even_for_the_operator(
    tmp_path: Path, there: RoleSite
) -> None:
    async def scenario() -> None:
        async with there.node(tmp_path / "data") as node, there.connect("operator") as js:
            await js.streams.create("orders", "shop.orders.>")
            for suffix in (f"node.{node.node_id}.stream.delete.orders", "discovery"):
                with pytest.raises(NoResponders):
                    await js.publish(f"jetstream.api.{suffix}", b"{}")
            assert (await js.streams.info("orders")).state == "online"

    run(scenario())


def test_what_an_account_does_not_import_leads_nowhere_whatever_its_user_may_do(
    tmp_path: Path, start_nats_server: StartNatsServer
) -> None:
    """The outer fence alone: the user of the page may publish and subscribe to everything here."""
    recipe = configuration()
    begin = recipe.index('{ user: admin, password: "admin-secret"')
    end = recipe.index("} }", begin)
    wide = f'{recipe[:begin]}{{ user: admin, password: "admin-secret" }}{recipe[end + len("} }") :]}'
    there = configured_site(tmp_path, start_nats_server, wide)

    async def scenario() -> None:
        async with (
            there.node(tmp_path / "data"),
            there.connect("operator") as operator,
            there.connect("admin") as js,
        ):
            await operator.streams.create("hr/salaries", "shop.orders.hr")
            for act in (
                js.streams.info("hr/salaries"),
                js.streams.delete("hr/salaries"),
                js.streams.list(),
                js.streams.lookup("shop.orders.hr"),
                js.cursors.commit("other", "orders", 1),
            ):
                with pytest.raises(NoResponders):
                    await act
            heard = await js.nats.subscribe(">")
            await js.streams.create("shop/orders", "shop.orders.>")
            assert (await js.publish("shop.orders.eu", b"x")).offset == 0
            await operator.requests.cluster_info()
            own = [(await heard.next_msg()).subject for _ in range(heard.pending_msgs)]
            assert all(subject.startswith(("_INBOX_admin.", "jetstream.api.", "shop.")) for subject in own)
            assert "jetstream.api.cluster.info" not in own
            assert [stream.name for stream in await operator.streams.list()] == ["hr/salaries", "shop/orders"]

    run(scenario())


@pytest.mark.parametrize("user", ["publisher", "stranger"])
def test_the_service_of_the_callout_lets_nobody_in_whom_it_does_not_know(
    tmp_path: Path, start_nats_server: StartNatsServer, user: str
) -> None:
    there = SITES["auth callout"](tmp_path, start_nats_server)

    async def scenario() -> None:
        async with there.service():
            with pytest.raises(Unauthorized, match="Authorization Violation"):
                async with jetstream.connect(
                    there.server.url, user=user, password="wrong", request_timeout=WAIT_SECONDS
                ):
                    pass

    run(scenario())


def test_the_command_has_inboxes_of_its_user(tmp_path: Path, start_nats_server: StartNatsServer) -> None:
    there = configured_site(tmp_path, start_nats_server)

    def command(role: str, *arguments: str, prefix: str = "") -> tuple[int, str, str]:
        identity = {
            "JETSTREAM_NATS": there.server.url,
            "JETSTREAM_NATS_USER": role,
            "JETSTREAM_NATS_PASSWORD": f"{role}-secret",
            **({"JETSTREAM_NATS_INBOX_PREFIX": prefix} if prefix else {}),
        }
        with CommandProcess(*arguments, environment=identity) as process:
            return process.finished()

    async def scenario() -> None:
        async with there.node(tmp_path / "data"):
            create = ("stream", "create", "shop/orders", "--subject", "shop.orders.>")
            code, _, told = await asyncio.to_thread(command, "admin", *create)
            assert code in (ExitCode.REFUSED, ExitCode.UNREACHABLE), "it may be done already"
            assert "does not let this user subscribe to '_INBOX." in told
            code, _, told = await asyncio.to_thread(command, "admin", *create, prefix="_INBOX_admin")
            assert code == 0, told
            pub = ("pub", "shop.orders.eu.de", "x")
            code, _, told = await asyncio.to_thread(command, "publisher", *pub, prefix="_INBOX_publisher")
            assert code == 0, told
            code, _, told = await asyncio.to_thread(
                command, "publisher", "stream", "ls", prefix="_INBOX_publisher"
            )
            assert code == ExitCode.REFUSED
            assert "publish on 'jetstream.api.stream.list'" in told
            read = ("read", "shop/orders", "--format", "text", "--subject")
            code, out, told = await asyncio.to_thread(
                command, "reader", *read, EUROPEAN, prefix="_INBOX_reader"
            )
            assert (code, "shop.orders.eu" in out) == (0, True), told
            code, _, told = await asyncio.to_thread(
                command, "reader", *read, "shop.orders.>", prefix="_INBOX_reader"
            )
            assert code == ExitCode.REFUSED
            assert "publish on 'jetstream.api.read.shop.orders.subject.shop.orders.>'" in told

    run(scenario())
