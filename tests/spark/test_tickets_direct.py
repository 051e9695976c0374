"""The readers of the Spark source as Spark calls them, without Spark, against a node that wants tickets."""

import asyncio
import io
import os
import pickle
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, Filter, InputPartition, StringStartsWith
from pyspark.sql.worker.plan_data_source_read import write_read_func_and_partitions

from envelope.errors import InvalidTicket, Unauthorized, UnknownStream
from envelope.limits import MIB
from jetstream.spark.options.source_options import parse_source_options
from jetstream.spark.reading.batch_reader import FilteringBatchReader
from jetstream.spark.reading.columns import output_schema
from jetstream.spark.reading.range_reader import LogPiece
from jetstream.spark.reading.readers import batch_reader, read_schema
from jetstream.spark.source import JetstreamDataSource
from tests.conftest import StartNatsServer
from tests.support.nats_server import NatsServer
from tests.support.nats_site import NODE, PASSWORD, Site, site, users_config
from tests.support.nodes import run
from tests.support.pauses import pause_thread
from tests.support.spark_reads import Query, batch_rows, rows_of
from tests.support.tickets import heard, importing, may_read, short_lived, with_orders

RIGHTS = {
    "auditor": [may_read("shop.orders"), may_read("shop.parts"), may_read("nothing")],
    "eu": [
        may_read("shop.orders", "orders.eu.>"),
        may_read("shop.parts", "parts.eu.>"),
        may_read("shop.large", "large.eu"),
    ],
}
EVERYWHERE = ["true", "false"]
"""Values of executorNats."""
TICKETS = 4
"""So many of a short life: the first one has ended by then, with its grace."""
RECORDS = 120
"""Of a mebibyte each: more than a reader has ahead."""


def against_a_site(
    directory: Path,
    server: NatsServer,
    scenario: Callable[[Site, list[str]], None],
    records: int = 0,
    **socket: object,
) -> None:
    """Run a scenario beside a node with three streams, in a thread without an event loop.

    The scenario gets the requests for tickets to read, as they come.

    ``records``: large ones, in a stream of their own.
    """

    async def test() -> None:
        async with site(directory / "data", server, "optional", **socket) as there, there.party(NODE) as js:
            await with_orders(there)
            await js.streams.create("shop/parts", "parts.>", partitions=2, partition_by="subject")
            for number in range(10):
                await js.publish(f"parts.{('eu', 'us')[number % 2]}.{number}", b"%d" % number)
            await js.streams.create("shop/large", "large.*")
            await js.publish_all((("large.eu", bytes(MIB)) for _ in range(records)), window=8)
            async with heard(js, "read.>") as asked:
                await asyncio.to_thread(scenario, there, asked)

    run(test())


def options_of(there: Site, party: str, **options: str) -> dict[str, str]:
    identity = {"servers": there.url, "nats.user": party, "nats.password": PASSWORD}
    given = {**identity, "stream": "shop/orders", "fetchTimeoutMs": "5000", **options}
    return {name: text for name, text in given.items() if text}


def subjects(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(row["subject"] for row in rows)


EUROPEAN = ["orders.eu.de", "orders.eu.de.berlin", "orders.eu.fr"]


@pytest.mark.parametrize("executors", EVERYWHERE)
def test_a_right_to_read_is_enough_to_read_in_batches_and_as_a_stream(
    tmp_path: Path,
    start_nats_server: StartNatsServer,
    executors: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def scenario(there: Site, _asked: list[str]) -> None:
        whole = options_of(there, "auditor", executorNats=executors)
        assert subjects(batch_rows(whole)) == sorted([*EUROPEAN, "orders.us.ny"])
        assert len(batch_rows({**whole, "stream": "shop/parts"})) == 10
        assert subjects(batch_rows({**whole, "minPartitions": "2", "subject": "*.*.ny"})) == ["orders.us.ny"]
        european = options_of(there, "eu", subject="orders.eu.>", executorNats=executors)
        assert subjects(batch_rows(european)) == EUROPEAN
        parts = {**european, "stream": "shop/parts", "subject": "parts.eu.>", "minPartitions": "4"}
        assert subjects(batch_rows(parts)) == [f"parts.eu.{number}" for number in range(0, 10, 2)]
        one = {**parts, "stream": "shop/parts/1"}
        [(stream, partition)] = {(row["stream"], row["partition"]) for row in batch_rows(one)}
        assert (stream, partition) == ("shop/parts", 1)
        query = Query({**european, "startingOffsets": "earliest", "maxBytesPerTrigger": "1"})
        found = [row for _ in range(4) for row in query.batch() or []]
        assert subjects(found) == EUROPEAN
        query.close()
        assert not [each for each in caplog.records if each.name.startswith("nats.")]  # in each task's output

    against_a_site(tmp_path, start_nats_server(users_config(RIGHTS)), scenario, require="ticket")


def test_an_account_that_imports_the_right_to_read_alone_reads(
    tmp_path: Path, start_nats_server: StartNatsServer
) -> None:
    def scenario(there: Site, _asked: list[str]) -> None:
        for stream, subject in (("shop/orders", "orders.eu.>"), ("shop/parts", "parts.eu.>")):
            options = options_of(there, "eu", stream=stream, subject=subject, startingOffsets="earliest")
            query = Query(options)
            assert query.batch()
            query.close()

    server = start_nats_server(importing(may_read("shop.>")))
    against_a_site(tmp_path, server, scenario, require="ticket")


def test_a_missing_right_is_named(tmp_path: Path, start_nats_server: StartNatsServer) -> None:
    def scenario(there: Site, _asked: list[str]) -> None:
        for options, right in (
            (options_of(there, "eu"), r"read\.shop\.orders'"),
            (options_of(there, "eu", subject="orders.>"), r"read\.shop\.orders\.subject\.orders\.>'"),
            (options_of(there, "eu", stream="secrets"), r"read\.secrets'"),
            (options_of(there, "auditor", stream="", streamPattern=".*"), r"stream\.list"),
        ):
            with pytest.raises(Unauthorized, match=right):
                batch_rows(options)
        with pytest.raises(UnknownStream, match="nothing"):
            batch_rows(options_of(there, "auditor", stream="nothing"))

    against_a_site(tmp_path, start_nats_server(users_config(RIGHTS)), scenario, require="ticket")


def test_the_ticket_is_for_the_subject_of_the_filter(
    tmp_path: Path, start_nats_server: StartNatsServer
) -> None:
    def scenario(there: Site, _asked: list[str]) -> None:
        options = parse_source_options(options_of(there, "eu"), streaming=False)
        schema = output_schema(options.output_columns)
        cases: list[tuple[list[Filter], list[str]]] = [
            ([EqualTo(("subject",), "orders.eu.fr")], ["orders.eu.fr"]),
            ([StringStartsWith(("subject",), "orders.eu.")], EUROPEAN),
            (
                [StringStartsWith(("subject",), "orders."), EqualTo(("subject",), "orders.eu.de")],
                ["orders.eu.de"],
            ),
        ]
        for filters, expected in cases:
            reader = FilteringBatchReader(options, schema)
            assert list(reader.pushFilters(filters)) == []
            assert subjects(batch_rows({}, reader)) == expected
        reader = FilteringBatchReader(options, schema)
        assert list(reader.pushFilters([EqualTo(("subject",), "orders.us.ny")])) == []
        with pytest.raises(Unauthorized, match=r"read\.shop\.orders\.subject\.orders\.us\.ny'"):
            reader.partitions()

    against_a_site(tmp_path, start_nats_server(users_config(RIGHTS)), scenario, require="ticket")


def test_a_long_task_renews_its_tickets(tmp_path: Path, start_nats_server: StartNatsServer) -> None:
    def scenario(there: Site, asked: list[str]) -> None:
        options = options_of(there, "eu", stream="shop/large", subject="large.eu")
        reader = batch_reader(options, read_schema(options))
        [partition] = reader.partitions()
        reading = reader.read(partition)
        rows = next(reading).num_rows
        before = len(asked)
        while len(asked) < before + TICKETS:
            pause_thread()
        assert rows + sum(batch.num_rows for batch in reading) == RECORDS
        assert set(asked) == {may_read("shop.large", "large.eu")}

    server = start_nats_server(users_config(RIGHTS))
    against_a_site(tmp_path, server, scenario, records=RECORDS, **short_lived())


def test_a_task_without_nats_ends_with_its_ticket_and_the_next_micro_batch_has_another(
    tmp_path: Path, start_nats_server: StartNatsServer
) -> None:
    def scenario(there: Site, _asked: list[str]) -> None:
        limited = options_of(there, "eu", executorNats="false")
        large = {**limited, "stream": "shop/large", "subject": "large.eu"}
        reader = batch_reader(large, read_schema(large))
        [partition] = reader.partitions()
        reading = reader.read(partition)
        next(reading)
        query = Query({**limited, "subject": "orders.eu.>", "startingOffsets": "earliest"})
        rows = query.batch()
        first = query.reader.partitions(*query.batches[0])
        tickets = {ticket_of(first)}
        while len(tickets) < TICKETS:
            assert query.rows(0) == rows
            tickets.add(ticket_of(query.reader.partitions(*query.batches[0])))

        def read_until_it_ends() -> None:
            while rows_of(query.reader, first):
                pause_thread()

        with pytest.raises(InvalidTicket, match="ended"):
            read_until_it_ends()
        with pytest.raises(InvalidTicket, match="ended"):
            list(reading)
        assert query.rows(0) == rows
        query.close()

    server = start_nats_server(users_config(RIGHTS))
    against_a_site(tmp_path, server, scenario, records=RECORDS, **short_lived(seconds=2))


def test_a_query_whose_right_is_taken_away_ends(tmp_path: Path, start_nats_server: StartNatsServer) -> None:
    server = start_nats_server(users_config(RIGHTS))

    def scenario(there: Site, _asked: list[str]) -> None:
        options = options_of(there, "eu", subject="orders.eu.>", startingOffsets="earliest")
        query = Query({**options, "executorNats": "false"})
        assert query.batch()
        server.configure(users_config(RIGHTS | {"eu": [may_read("other")]}))
        os.kill(server.pid, signal.SIGHUP)

        def go_on() -> None:
            while query.rows(0):
                pause_thread()

        with pytest.raises(Unauthorized, match=r"read\.shop\.orders"):
            go_on()
        query.close()

    against_a_site(tmp_path, server, scenario, **short_lived())


def ticket_of(partitions: list[InputPartition]) -> object:
    [piece] = [partition.value for partition in partitions]
    assert isinstance(piece, LogPiece)
    if piece.read_pass is None or piece.read_pass.ticket is None:
        return None
    return piece.read_pass.ticket.get_secret_value()


@pytest.mark.parametrize("executors", EVERYWHERE)
def test_what_goes_to_executors_without_nats_has_no_credentials_and_shows_no_ticket(
    tmp_path: Path, start_nats_server: StartNatsServer, executors: str
) -> None:
    def scenario(there: Site, _asked: list[str]) -> None:
        options = options_of(there, "auditor", executorNats=executors)
        schema = read_schema(options)
        for planning in ("reader", "streamReader"):
            source = pickle.loads(pickle.dumps(JetstreamDataSource(options)))
            reader, sent = getattr(source, planning)(schema), io.BytesIO()
            write_read_func_and_partitions(
                sent,
                reader=reader,
                data_source=source,
                schema=schema,
                max_arrow_batch_size=1,
                binary_as_bytes=True,
            )
            known = {secret.encode() in sent.getvalue() for secret in ("nats.password", there.url)}
            assert known == {executors == "true"}
        planner = batch_reader(options, schema)
        [partition] = planner.partitions()
        ticket = ticket_of([partition])
        assert (ticket is None) == (executors == "true")
        shown = "".join(map(repr, (partition.value, planner, vars(planner))))
        assert PASSWORD not in shown
        assert ticket is None or str(ticket) not in shown

    against_a_site(tmp_path, start_nats_server(users_config(RIGHTS)), scenario, require="ticket")
