"""Records over HTTP: every format and place gives what a reader at the socket gets."""

import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from io import BytesIO
from pathlib import Path

from pyarrow import csv

import jetstream
from envelope.limits import KIB
from jetstream.log.format.schema import END_OF_STREAM, SCHEMA_MESSAGE
from jetstream.node.node import Node
from tests.support.http_reading import ask
from tests.support.nodes import nats_and_node, run

RECORDS = 600
SEGMENT_BYTES = 64 * KIB


@asynccontextmanager
async def stored(directory: Path) -> AsyncIterator[tuple[Node, jetstream.JetstreamClient]]:
    """A node with a stream of several segments, whose batches have one record or many."""
    async with (
        nats_and_node(directory, http={"port": 0}) as (url, node),
        jetstream.connect(url) as js,
    ):
        await js.streams.create("orders", "orders.>", segment_bytes=SEGMENT_BYTES)
        for number in range(10):
            await js.publish(
                f"orders.{number % 3}", f"alone {number}".encode(), key=f"k{number % 2}".encode()
            )
        async with js.publisher() as publisher:
            for number in range(10, RECORDS):
                value = f"many {number} {'x' * 300}".encode()
                _ = await publisher.publish(f"orders.{number % 3}", value, headers={"Kind": "many"})
        yield node, js


def test_every_range_in_every_format_has_exactly_the_records_that_were_asked_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stored(tmp_path) as (node, js):
            async with js.read("orders") as reader:
                records = [record async for record in reader]
            assert len(records) == RECORDS
            drawn = random.Random(38)
            for _ in range(60):
                start, end = sorted(drawn.randint(0, RECORDS) for _ in range(2))
                limit = drawn.choice([None, None, 1, 7, 100])
                subject = drawn.choice([None, None, "orders.1", "orders.*"])
                wanted = [
                    record for record in records[start:end] if subject in (None, "orders.*", record.subject)
                ][:limit]
                target = f"/v1/streams/orders/records?from={start}&to={end}"
                target += "" if limit is None else f"&limit={limit}"
                target += "" if subject is None else f"&subject={subject}"
                table = (await ask(node, f"{target}&format=arrow")).table()
                assert table["offset"].to_pylist() == [record.offset for record in wanted], target
                assert table["value"].to_pylist() == [record.value for record in wanted]
                lines = (await ask(node, target)).lines()
                assert [line["value"].encode() for line in lines] == [record.value for record in wanted]
                events = (await ask(node, target, accept="text/event-stream")).body.split(b"\n\n")[:-1]
                assert [json.loads(event.partition(b"data: ")[2]) for event in events] == lines
                text = (await ask(node, target, accept="text/csv")).body
                rows = csv.read_csv(BytesIO(text))
                assert rows["offset"].to_pylist() == [record.offset for record in wanted]

    run(scenario())


def test_a_whole_stream_is_its_files_with_the_bytes_of_one_schema(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stored(tmp_path) as (node, _):
            answer = await ask(node, "/v1/streams/orders/records?format=arrow")
            stream = node.stream("orders")
            assert stream is not None
            segments = stream.log.reader.segments
            assert len(segments) > 2
            files = sorted((tmp_path / "data" / "streams").glob("orders@*/*.arrows"))
            batches = b"".join(
                file.read_bytes()[len(SCHEMA_MESSAGE) : segment.data_end]
                for file, segment in zip(files, segments, strict=True)
            )
            assert answer.body == SCHEMA_MESSAGE + batches + END_OF_STREAM
            assert answer.headers["content-type"] == "application/vnd.apache.arrow.stream"

    run(scenario())


PLACES: tuple[tuple[str, list[int]], ...] = (
    ("from=earliest&limit=2", [0, 1]),
    ("from=latest", []),
    ("from=-2", [RECORDS - 2, RECORDS - 1]),
    ("from=-100000&limit=1", [0]),
    ("from=-1h&limit=1", [0]),
    ("from=2020-01-01T00:00:00Z&limit=1", [0]),
    ("to=2020-01-01", []),
    ("from=597&to=latest", [597, 598, 599]),
    ("from=598&to=700", [598, 599]),
    ("from=-5&to=-3", [595, 596]),
    ("from=5&to=3", []),
    ("key=k1", [1, 3, 5, 7, 9]),
    ("to=4&columns=value", [0, 1, 2, 3]),
)


def test_places_mean_what_they_mean_in_the_command(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stored(tmp_path) as (node, _):
            for query, offsets in PLACES:
                answer = await ask(node, f"/v1/streams/orders/records?{query}")
                assert [line["offset"] for line in answer.lines()] == offsets, query
                if "columns" in query:
                    assert set(answer.lines()[0]) == {"offset", "timestamp", "subject", "value"}

    run(scenario())


def test_links_lead_through_a_range_that_stays_what_it_was(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stored(tmp_path) as (node, js):
            target, offsets = "/v1/streams/orders/records?limit=250", list[int]()
            while True:
                answer = await ask(node, target)
                offsets += [line["offset"] for line in answer.lines()]
                await js.publish("orders.new", b"comes too late")
                if "link" not in answer.headers:
                    break
                target = answer.headers["link"].removeprefix("<").partition(">")[0]
            assert offsets == list(range(RECORDS))
            assert answer.headers["jetstream-next-offset"] == str(RECORDS)

    run(scenario())


def test_what_is_sealed_has_a_tag_and_stays_for_ever_under_its_own_url(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stored(tmp_path) as (node, _):
            sealed = "/v1/streams/orders/records?from=3&to=60"
            first = await ask(node, sealed)
            assert first.headers["cache-control"] == "no-cache"
            again = await ask(node, sealed, if_none_match=first.headers["etag"])
            assert (again.status, again.body) == (HTTPStatus.NOT_MODIFIED, b"")
            other = await ask(node, f"{sealed}&format=arrow", if_none_match=first.headers["etag"])
            assert other.status == HTTPStatus.OK, "another format is another representation"
            life = first.headers["jetstream-incarnation"]
            pinned = await ask(node, f"{sealed}&incarnation={life}")
            assert pinned.headers["cache-control"] == "public, max-age=31536000, immutable"
            newest = await ask(node, "/v1/streams/orders/records?from=3")
            assert newest.headers["cache-control"] == "no-store"
            assert "etag" not in newest.headers
            head = await ask(node, sealed, method="HEAD")
            assert head.body == b""
            assert {
                name: head.headers[name] for name in ("etag", "content-type", "jetstream-end-offset")
            } == {name: first.headers[name] for name in ("etag", "content-type", "jetstream-end-offset")}

    run(scenario())


def test_one_value_comes_as_it_is_and_runs_nothing_in_a_browser(tmp_path: Path) -> None:
    hostile = b"<script>alert(1)</script>\xff"

    async def scenario() -> None:
        async with stored(tmp_path) as (node, js):
            kinds = {
                "text/html; charset=utf-8": "text/html; charset=utf-8",
                "text/html\r\nx: y": "application/octet-stream",
                "ä": "application/octet-stream",
            }
            for said, shown in kinds.items():
                headers = {"Content-Type": said} if "\r" not in said else None
                ack = await js.publish("orders.page", hostile, headers=headers)
                answer = await ask(node, f"/v1/streams/orders/records/{ack.offset}/value")
                assert answer.body == hostile
                assert answer.headers["content-type"] == (shown if headers else "application/octet-stream")
                assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"
                assert answer.headers["x-content-type-options"] == "nosniff"
            ack = await js.publish("orders.gone", None, key=b"k")
            gone = await ask(node, f"/v1/streams/orders/records/{ack.offset}/value")
            assert (gone.status, gone.json()["err_code"]) == (404, "record_not_found")

    run(scenario())


REFUSALS = (
    ("/v1/streams/none/records", 404, "stream_not_found"),
    ("/v1/streams/orders/records?from=601", 416, "offset_out_of_range"),
    ("/v1/streams/orders/records?from=soon", 400, "bad_request"),
    ("/v1/streams/orders/records?to=earliest", 400, "bad_request"),
    ("/v1/streams/orders/records?limit=0", 400, "bad_request"),
    ("/v1/streams/orders/records?limit=1&limit=2", 400, "bad_request"),
    ("/v1/streams/orders/records?colour=red", 400, "bad_request"),
    ("/v1/streams/orders/records?columns=colour", 400, "bad_request"),
    ("/v1/streams/orders/records?subject=a..b", 400, "bad_request"),
    ("/v1/streams/orders/records?format=xml", 400, "bad_request"),
    ("/v1/streams/orders/records?follow=true&to=2030-01-01", 400, "bad_request"),
    ("/v1/streams/orders/records?from=1&incarnation=0000", 409, "stream_recreated"),
    ("/v1/streams/orders/records?%ff=1", 400, "bad_request"),
    ("/v1/streams/%ff/records", 400, "bad_request"),
    ("/v1/streams/orders/records/x/value", 400, "bad_request"),
    ("/v1/streams/orders/records/700/value", 416, "offset_out_of_range"),
    ("/v1/streams/a%20b", 400, "invalid_name"),
    ("/v1/streams?offset=x", 400, "bad_request"),
    ("/v1/colours", 404, "path_not_found"),
)


def test_a_refusal_is_a_problem_document_with_the_error_of_the_request_api(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stored(tmp_path) as (node, _):
            for target, status, err_code in REFUSALS:
                answer = await ask(node, target)
                problem = answer.json()
                assert (answer.status, problem["err_code"]) == (status, err_code), target
                assert answer.headers["content-type"] == "application/problem+json"
                assert problem["type"] == f"urn:jetstream:error:{err_code}"
                assert problem["status"] == status
                assert problem["detail"]

    run(scenario())


def test_an_accept_that_names_nothing_that_there_is_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stored(tmp_path) as (node, _):
            target = "/v1/streams/orders/records?limit=1"
            assert (await ask(node, target, accept="image/png")).status == HTTPStatus.NOT_ACCEPTABLE
            for accept, kind in (
                (
                    "text/csv;q=0.5, application/vnd.apache.arrow.stream",
                    "application/vnd.apache.arrow.stream",
                ),
                ("text/html, */*;q=0.1", "application/x-ndjson"),
                ("text/csv;q=0", "refused"),
            ):
                answer = await ask(node, target, accept=accept)
                assert answer.headers["content-type"] in (kind, "application/problem+json")
                assert (answer.status == HTTPStatus.OK) == (kind != "refused")

    run(scenario())


def test_questions_have_the_answers_of_the_request_api(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stored(tmp_path) as (node, js):
            info = await js.streams.info("orders")
            assert (await ask(node, "/v1/streams/orders")).json()["config"]["name"] == info.config.name
            assert (await ask(node, "/v1/streams?prefix=or&limit=1")).json()["total"] == 1
            assert (await ask(node, "/v1/cluster")).json()["metadata_leader"] == node.node_id
            for empty in ("groups", "cursors", "namespaces"):
                assert (await ask(node, f"/v1/{empty}")).status == HTTPStatus.OK
            assert (await ask(node, "/v1/groups/none")).json()["err_code"]
            assert (await ask(node, "/v1/streams/orders/publishers")).status == HTTPStatus.OK

    run(scenario())


def test_a_name_with_a_namespace_stands_in_a_path_with_its_slash_or_encoded(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stored(tmp_path) as (node, js):
            await js.streams.create("shop/records", "shop.>")
            await js.publish("shop.a", b"v")
            for name in ("shop/records", "shop%2Frecords"):
                assert [
                    line["value"] for line in (await ask(node, f"/v1/streams/{name}/records")).lines()
                ] == ["v"]
            assert (await ask(node, "/v1/streams/shop%2Frecords")).json()["config"]["name"] == "shop/records"

    run(scenario())
