"""The source in Spark itself, on a node that wants tickets: NATS decides what a query reads."""

import asyncio
import io
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import jetstream
from jetstream.client.blocking.client import BlockingClient
from metadata.api.ticket_responses import RotateKeyResponse
from tests.conftest import StartNatsServer
from tests.support.nats_server import NatsServer
from tests.support.nats_site import NODE, PASSWORD, Site, site, users_config
from tests.support.nodes import run
from tests.support.pauses import pause_thread
from tests.support.tickets import RIGHTS, may_read, short_lived, with_orders

SWITCH = "spark.sql.python.filterPushdown.enabled"
EUROPEAN = ["orders.eu.de", "orders.eu.fr", "orders.eu.de.berlin"]
ROUNDS = 3
TICKET = "eyJ"
"""The beginning of JSON in base64, and so of a ticket."""


def against(
    directory: Path, server: NatsServer, scenario: Callable[[Site, BlockingClient], None], **socket: object
) -> None:
    """Run a scenario beside a node with streams, in a thread; it gets a client that may do everything."""

    def connected(there: Site) -> None:
        with jetstream.connect_blocking(there.url, user=NODE, password=PASSWORD) as js:
            scenario(there, js)

    async def test() -> None:
        async with site(directory / "data", server, "optional", **socket) as there:
            await with_orders(there)
            await asyncio.to_thread(connected, there)

    run(test())


def options_of(there: Site, party: str, **options: str) -> dict[str, str]:
    identity = {"servers": there.url, "nats.user": party, "nats.password": PASSWORD}
    return {**identity, "stream": "shop/orders", **options}


@pytest.fixture
def pushdown(spark: SparkSession) -> Iterator[None]:
    """Spark hands filters over to sources."""
    spark.conf.set(SWITCH, "true")
    yield
    spark.conf.unset(SWITCH)


def test_a_filter_by_subject_is_in_the_plan_and_all_that_a_ticket_is_needed_for(
    spark: SparkSession, tmp_path: Path, start_nats_server: StartNatsServer, pushdown: None
) -> None:
    def scenario(there: Site, _js: BlockingClient) -> None:
        options = options_of(there, "eu", executorNats="false")
        everything = spark.read.format("jetstream").options(**options).load()
        with pytest.raises(PySparkException, match=r"Unauthorized: .*read\.shop\.orders"):
            everything.collect()
        european = everything.where("subject like 'orders.eu.%'")
        assert [row.subject for row in european.collect()] == EUROPEAN
        plans = explained(european)
        assert "PushedFilters: [IsNotNull(subject), StringStartsWith(subject,orders.eu.)]" in plans
        assert PASSWORD not in plans
        assert TICKET not in plans

    against(tmp_path, start_nats_server(users_config(RIGHTS)), scenario, require="ticket")


def explained(frame: DataFrame) -> str:
    """Return the plans of a query, in all modes."""
    with redirect_stdout(io.StringIO()) as shown:
        for mode in ("extended", "formatted"):
            frame.explain(mode=mode)
    return shown.getvalue()


def following(spark: SparkSession, checkpoint: str, options: dict[str, str]) -> StreamingQuery:
    """Start a query that keeps in memory what is read, in a table `followed`."""
    source = spark.readStream.format("jetstream").options(startingOffsets="earliest", **options).load()
    rows = source.writeStream.format("memory").queryName("followed")
    return rows.option("checkpointLocation", checkpoint).start()


@pytest.mark.parametrize(
    "executors",
    [
        pytest.param(
            "true",
            marks=pytest.mark.slow("tests/spark/test_tickets_direct.py::test_a_long_task_renews_its_tickets"),
        ),
        "false",
    ],
)
def test_a_query_goes_on_beyond_the_ends_of_its_tickets(
    spark: SparkSession, checkpoint: str, tmp_path: Path, start_nats_server: StartNatsServer, executors: str
) -> None:
    def scenario(there: Site, js: BlockingClient) -> None:
        options = options_of(there, "eu", subject="orders.eu.>", executorNats=executors)
        query = following(spark, checkpoint, options)
        for _ in range(ROUNDS):
            js.publish("orders.eu.more", b"x")
            js.publish("orders.us.more", b"x")
            query.processAllAvailable()
            asyncio.run(end_tickets(there))
        subjects = [row.subject for row in spark.table("followed").collect()]
        assert subjects == [*EUROPEAN, *["orders.eu.more"] * ROUNDS]
        query.stop()

    # Not by their lifetimes: when a task begins is up to Spark. test_tickets_direct.py has those.
    against(tmp_path, start_nats_server(users_config(RIGHTS)), scenario, require="ticket")


async def end_tickets(there: Site) -> None:
    """End all tickets that there are."""
    async with there.party(NODE) as js:
        await js.requests.ask("cluster.rotate_key", {"revoke": True}, RotateKeyResponse)


@pytest.mark.slow("tests/spark/test_tickets_direct.py::test_a_query_whose_right_is_taken_away_ends")
def test_a_query_whose_right_is_taken_away_ends_and_says_so(
    spark: SparkSession, checkpoint: str, tmp_path: Path, start_nats_server: StartNatsServer
) -> None:
    server = start_nats_server(users_config(RIGHTS))

    def scenario(there: Site, js: BlockingClient) -> None:
        query = following(spark, checkpoint, options_of(there, "eu", subject="orders.eu.>"))
        query.processAllAvailable()
        server.configure(users_config(RIGHTS | {"eu": [may_read("other")]}))
        os.kill(server.pid, signal.SIGHUP)
        while query.isActive:
            js.publish("orders.eu.more", b"x")
            pause_thread()
        with pytest.raises(StreamingQueryException, match=r"Unauthorized: .*read\.shop\.orders"):
            query.awaitTermination()

    against(tmp_path, server, scenario, **short_lived())
