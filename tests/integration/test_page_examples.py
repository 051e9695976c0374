"""The examples in the pages run as they are written, but for the port of the NATS server.

A block that calls ``asyncio.run`` is a program of its own; the others are run as an interactive Python with
top-level await would run them, with the names that the text around them introduces.
"""

import ast
import asyncio
import builtins
import json
import os
import re
import shlex
import subprocess
import sys
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from nats.aio.client import Client

import jetstream
from envelope.partitions import partition_of
from jetstream import JetstreamClient
from metadata.api.requests import REQUESTS
from metadata.api.subjects import request_subject
from tests.support.commands import REPOSITORY, WAIT_SECONDS, succeeded
from tests.support.nodes import nats_and_node, run
from tests.support.page_examples import blocks, python


async def interactive(source: str, names: Mapping[str, object]) -> dict[str, Any]:
    """Run a block with top-level await and return the names it leaves."""
    compiled = compile(source, "<page>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    left: dict[str, Any] = dict(names)
    begun = types.FunctionType(compiled, left)()
    if begun is not None:
        await begun
    return left


async def program(*command: str, **environment: str) -> str:
    """Run a program that must succeed without a word of complaint; return what it printed."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **environment, "PYTHONPATH": str(REPOSITORY), "NO_COLOR": "1"},
    )
    printed, complaint = await process.communicate()
    assert (process.returncode, complaint.decode()) == (0, "")
    return printed.decode()


async def in_thread(source: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a block that is a program of its own in this process; return what it printed."""
    await asyncio.to_thread(exec, compile(source, "<page>", "exec"), {"__name__": "__main__"})
    printed, complaint = capsys.readouterr()
    assert complaint == ""
    return printed


async def by_commands(lines: str, url: str) -> str:
    """Run commands of the page one after the other, in this process; return what they printed."""
    words = (shlex.split(line) for line in lines.splitlines())
    return "".join([await asyncio.to_thread(succeeded, *arguments, nats=url) for _, *arguments in words])


async def by_shell(lines: str, url: str) -> str:
    """Run commands of the page as a shell does; return what they printed."""
    command = f'jetstream() {{ "{sys.executable}" -m jetstream "$@"; }}\n'
    return await program("sh", "-ec", command + lines, JETSTREAM_NATS=url)


@asynccontextmanager
async def a_stream(directory: Path) -> AsyncIterator[tuple[str, JetstreamClient]]:
    """A node, and a client that has created ``orders`` on ``orders.>`` if it was not there."""
    async with nats_and_node(directory) as (url, _), jetstream.connect(url) as js:
        if not await js.streams.list():
            await js.streams.create("orders", "orders.>")
        yield url, js


@pytest.mark.parametrize(
    "printed_by",
    [by_commands, pytest.param(by_shell, marks=pytest.mark.slow("tests/integration/test_page_examples.py"))],
)
def test_the_quick_start_of_the_readme_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], printed_by: Callable[[str, str], Awaitable[str]]
) -> None:
    (shell,) = [block for block in blocks("README.md", "sh") if block.startswith("jetstream stream create")]

    async def scenario() -> str:
        async with nats_and_node(tmp_path) as (url, _):
            printed = await printed_by(shell, url)
            left = await interactive(python("README.md", 0, url), {})
            assert (left["ack"].stream, left["ack"].seq) == ("orders", 2)
            client: Client = left["nc"]
            await client.close()
            await interactive(python("README.md", 1, url), {})
            return printed

    created, stored, read = run(scenario()).splitlines()
    assert created.startswith("created stream orders")
    assert stored.startswith("stored in orders at offset 0")
    assert json.loads(read)["value"] == '{"id": 1}'
    assert capsys.readouterr().out.splitlines() == ["orders 2", """2 orders.eu b'{"id": 3}'"""]


def test_the_program_on_the_request_apis_page_runs(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, node):
            (_,) = blocks("docs/api.md", "python")
            printed = await program(sys.executable, "-c", python("docs/api.md", 0, url))
            assert printed == f"{node.node_id} 0\n"

    run(scenario())


def test_the_answers_on_the_request_apis_page_have_the_keys_of_real_ones(tmp_path: Path) -> None:
    """Values differ from machine to machine; an example with another key, or another type, misleads."""
    page = (REPOSITORY / "docs" / "api.md").read_text(encoding="utf-8")
    examples = {
        suffix: [json.loads(block) for block in re.findall(r"```json\n(.*?)```", section, re.DOTALL)]
        for suffix, section in re.findall(r"^## ([a-z_.]+)\n(.*?)(?=^## )", page, re.MULTILINE | re.DOTALL)
    }
    assert sorted(examples) == sorted(REQUESTS)

    async def scenario() -> None:
        async with a_stream(tmp_path) as (_, js):
            await js.publish("orders.eu.1", b"x")
            await js.streams.update("orders", labels={"team": "shop"})
            await js.cursors.commit("billing", "orders", 1, metadata="batch 7")
        async with a_stream(tmp_path) as (_, js):  # with the restart as a possible gap
            requests: dict[str, dict[str, object]] = {
                "stream.info": {"name": "orders"},
                "stream.list": {"prefix": "or"},
                "stream.lookup": {"subject": "orders.eu.1"},
                "stream.truncate": {"name": "orders", "before": 1},
                "cursor.get": {"consumer": "billing", "stream": "orders"},
                "cursor.list": {"consumer": "billing"},
                "group.reset": {"group": "shipping", "cursors": [{"stream": "orders", "offset": 1}]},
                **{name: {} for name in ("cluster.info", "cluster.rotate_key", "group.list")},
                "group.info": {"group": "shipping"},
                "group.coordinator": {"group": "shipping"},
                "read": {"stream": "orders", "subject": "orders.eu.*"},
                "group.join": {"group": "shipping"},
                "group.delete": {"group": "shipping"},
                "stream.delete": {"name": "orders"},
            }
            for suffix, request in requests.items():
                subject = f"jetstream.api.{request_subject(suffix, request)}"
                reply = await js.nats.request(subject, json.dumps(request).encode(), 10)
                assert list(unlike(examples[suffix][-1], json.loads(reply.data), suffix)) == []

    run(scenario())


def unlike(example: object, real: object, place: str) -> Iterator[str]:
    """Yield where keys or types differ; lists are compared by their first elements, null may be anything."""
    if isinstance(example, dict) and isinstance(real, dict):
        yield from (f"{place}.{key} is in one of them only" for key in example.keys() ^ real.keys())
        for key in example.keys() & real.keys():
            yield from unlike(example[key], real[key], f"{place}.{key}")
    elif isinstance(example, list) and isinstance(real, list):
        if len(example) > 0 and len(real) > 0:
            yield from unlike(example[0], real[0], f"{place}[0]")
    elif isinstance(example, str) and isinstance(real, str):
        if re.fullmatch(r"[0-9a-f]{8,}", real) and len(example) != len(real):
            yield f"{place} has {len(example)} digits, not {len(real)}"
    elif example is not None and real is not None and type(example) is not type(real):
        yield f"{place} is {example!r}, not like {real!r}"


def test_the_example_of_publishing_runs_and_is_answered_as_the_page_says(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with a_stream(tmp_path) as (url, js):
            assert len(blocks("docs/publishing.md", "python")) == 3
            source = python("docs/publishing.md", 0, url)
            left = await interactive(source, {})
            client: Client = left["client"]
            await client.close()
            (said,) = re.findall(r"^# (\{.*\})$", source, re.MULTILINE)
            assert left["reply"].data.decode() == said
            assert left["ack"].seq == 3
            assert len([record async for record in js.read("orders")]) == 3

    run(scenario())


def test_a_session_is_published_as_the_publishing_page_says(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with a_stream(tmp_path) as (url, _):
            for is_repeat in (False, True):
                left = await interactive(python("docs/publishing.md", 1, url), {})
                assert [ack.offset for ack in left["acks"]] == list(range(1_000))
                assert {ack.duplicate for ack in left["acks"]} == {is_repeat}

    run(scenario())


def test_batches_are_published_as_the_publishing_page_says(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with a_stream(tmp_path) as (url, _):
            # pyarrow looks for them where it infers types; every program has them.
            names = {"__builtins__": builtins}
            left = await interactive(python("docs/publishing.md", 2, url), names)
            assert left["stored"][0][0] == 0
            assert left["stored"][-1][1] == 9_999
            assert left["first"].offset == 10_000
            assert (await left["waiting"][-1]).offset == 19_999

    run(scenario())


def test_the_envelope_on_its_page_is_answered_as_the_page_says(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with a_stream(tmp_path) as (url, js):
            assert len(blocks("docs/envelope.md", "python")) == 1
            source = python("docs/envelope.md", 0, url)
            left = await interactive(source, {"client": js.nats})
            (said,) = re.findall(r"^# (\{.*\})$", source, re.MULTILINE)
            assert left["reply"].data.decode() == said

    run(scenario())


def test_the_program_on_the_reading_page_runs(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _):
            printed = await program(sys.executable, "-c", python("docs/reading.md", 0, url))
            ack, record = printed.splitlines()
            assert ack == "0"
            assert record.startswith("0 20")
            assert record.endswith(" orders.eu b'one'")

    run(scenario())


def test_the_program_on_the_page_of_cursors_resumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> None:
        async with a_stream(tmp_path) as (url, js):
            await js.publish("orders.eu.1", b"one")
            code = python("docs/cursors.md", 0, url)
            assert await in_thread(code, capsys) == "0 b'one'\n[1]\n"
            await js.publish("orders.eu.1", b"two")
            assert await in_thread(code, capsys) == "1 b'two'\n[2]\n"

    run(scenario())


def test_the_program_on_the_page_of_groups_looks_after_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> None:
        async with a_stream(tmp_path) as (url, js):
            await js.publish("orders.eu.1", b"one")
            code = python("docs/internals/groups.md", 0, url)
            assert await in_thread(code, capsys) == "orders 0 0 1 1 None\nbehind by 1\n"

    run(scenario())


def test_the_program_on_the_page_of_consumers_goes_on_where_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> None:
        async with a_stream(tmp_path) as (url, js):
            await js.publish("orders.eu.1", b"one")
            await js.publish("orders.eu.1", b"last")
            assert len(blocks("docs/consuming.md", "python")) == 1
            code = python("docs/consuming.md", 0, url)
            assert await in_thread(code, capsys) == "orders 0 b'one'\norders 1 b'last'\n"
            await js.publish("orders.eu.1", b"last")
            assert await in_thread(code, capsys) == "orders 2 b'last'\n"

    run(scenario())


def test_every_reader_on_the_reading_page_reads(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with a_stream(tmp_path) as (url, js):
            await fill(js, 2500)
            tree = ast.parse(python("docs/reading.md", 1, url))
            times = "from datetime import UTC, datetime, timedelta"
            names = await interactive(times, {"js": js, "jetstream": jetstream})
            counts = []
            for line in tree.body:
                if isinstance(line, ast.Expr):
                    code = compile(ast.Expression(line.value), "<page>", "eval")
                    reader = eval(code, names)  # the page's own text
                    if "follow=True" in ast.unparse(line):
                        counts.append(await first_of(reader, js))
                    else:
                        counts.append(len([record async for record in reader]))
            everything, followed, a_range, last_ten, last_hour, since, by_txid = counts
            assert (everything, a_range, last_ten) == (2500, 1000, 10)
            assert last_hour > 2500, "what was published meanwhile is there, too"
            assert followed >= 2500, "nothing that was there before"
            assert since > 2500 or datetime.now(UTC) < datetime(2026, 5, 1, tzinfo=UTC)
            assert by_txid == 0, "no record has a transaction id"

    async def first_of(reader: jetstream.RecordReader, js: JetstreamClient) -> int:
        """Publish until the reader, which begins at the latest, has one; return its offset."""
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(anext(reader))
            while not first.done():
                await js.publish("orders.eu", b"new")
        await reader.aclose()
        return first.result().offset

    run(scenario())


class EnoughError(Exception):
    """Ends a loop that goes on for ever."""


def test_stopping_and_going_on_as_the_reading_page_says_sees_every_record_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with a_stream(tmp_path) as (url, js):
            await fill(js, 10)
            seen: list[int] = []
            stored: dict[str, object] = {"stored_offset": 0, "stored_incarnation": None}

            def store(offset: int, incarnation: str) -> None:
                stored.update(stored_offset=offset, stored_incarnation=incarnation)
                if offset in (4, 10):
                    raise EnoughError

            for _ in range(2):
                names = {"js": js, "handle": lambda record: seen.append(record.offset), "store": store}
                with pytest.raises(EnoughError):
                    await interactive(python("docs/reading.md", 6, url), {**names, **stored})
            assert seen == list(range(10))
            assert stored["stored_incarnation"] == (await js.streams.info("orders")).incarnation

    run(scenario())


def test_publishing_as_the_reading_page_says_awaits_every_ack(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with a_stream(tmp_path) as (url, js):
            await js.streams.create("audit", "orders.>")
            assert len(blocks("docs/reading.md", "python")) == 11
            names = {"js": js, "payloads": [b"%d" % number for number in range(2500)]}
            left = await interactive(python("docs/reading.md", 7, url), names)
            assert left["ack"].offset == 0
            assert [ack.stream for ack in left["acks"]] == ["orders", "audit"]
            assert left["future"].done()
            for name in ("orders", "audit"):
                assert (await js.streams.info(name)).log_end_offset == 2501  # order-1 was there already
            left = await interactive(python("docs/reading.md", 8, url), names)
            assert [ack.duplicate for ack in left["acks"]] == [True] * 2500

    run(scenario())


def test_a_part_of_a_stream_as_the_reading_page_reads_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with a_stream(tmp_path) as (url, js):
            await js.publish("orders.new.eu", b"1", key="customer-7")
            await js.publish("orders.new.us", b"2")
            parts = []
            for line in ast.parse(python("docs/reading.md", 2, url)).body:
                assert isinstance(line, ast.Expr)
                reader = eval(compile(ast.Expression(line.value), "<page>", "eval"), {"js": js})
                parts.append([(record.key, record.value) async for record in reader])
            assert parts == [[(b"customer-7", b"1")], [(b"customer-7", b"1")], [(None, b"1"), (None, b"2")]]

    run(scenario())


def test_tables_as_the_reading_page_makes_them_hold_the_range(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with a_stream(tmp_path) as (url, js):
            await fill(js, 2500)
            names = await interactive(python("docs/reading.md", 3, url), {"js": js, "polars": pl})
            assert names["table"]["value"].to_pylist() == [b"%d" % number for number in range(1000, 2000)]
            assert names["polars_frame"]["offset"].to_list() == list(range(1000, 2000))
            assert list(names["frame"]["offset"]) == list(range(1000, 2000))

    run(scenario())


def test_the_blocking_client_as_the_reading_page_uses_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> str:
        async with a_stream(tmp_path) as (url, _):
            names = {"jetstream": jetstream, "payloads": [b"two", b"three"]}
            code = compile(python("docs/reading.md", 5, url), "<page>", "exec")
            await asyncio.to_thread(exec, code, names)
            assert names["table"].num_rows == 5  # type: ignore[attr-defined]  # the page made it
        return capsys.readouterr().out

    printed = run(scenario()).splitlines()
    assert printed[:5] == ["0 b'one'", "1 b'two'", "2 b'three'", "3 b'two'", "4 b'three'"]
    assert sum(map(int, printed[5:])) == 5, "rows of batches"


def test_a_frame_is_published_as_the_reading_page_says(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with a_stream(tmp_path) as (url, js):
            names = await interactive(python("docs/reading.md", 9, url), {"js": js, "polars": pl})
            assert names["acks"]["offset"].to_pylist() == [0, 1]
            records = [record async for record in js.read("orders")]
            assert [(record.key, record.value) for record in records] == [(b"a", b"four"), (None, b"five")]

    run(scenario())


def test_a_stream_is_a_table_as_the_reading_page_says(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with a_stream(tmp_path) as (url, js):
            await js.publish("orders.eu", b"old", key="customer-7")
            await js.publish("orders.eu", b"other", key="customer-8")
            await js.publish("orders.eu", b"new", key="customer-7")
            names = await interactive(python("docs/reading.md", 10, url), {"js": js})
            assert (names["customers"], names["last"]) == (2, b"new")
            assert names["values"] == {b"customer-8": b"other", b"customer-7": b"new"}
            assert names["table"]["offset"].to_pylist() == [1, 2]

    run(scenario())


def test_progress_is_told_as_the_reading_page_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> None:
        async with a_stream(tmp_path) as (url, js):
            await fill(js, 2500)
            await interactive(python("docs/reading.md", 4, url), {"js": js})

    run(scenario())
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "0 records, offset 0 of 2,500"
    assert told[-1] == "2,500 records, offset 2,500 of 2,500"


async def fill(js: JetstreamClient, number: int) -> None:
    async with js.publisher() as publisher:
        for value in range(number):
            _ = await publisher.publish("orders.eu", b"%d" % value)


@pytest.mark.slow("tests/unit/ingest/publishers/test_dedupe.py")
def test_message_ids_take_the_memory_that_the_operations_page_says() -> None:
    page = (REPOSITORY / "docs" / "operations.md").read_text(encoding="utf-8")
    (measure,) = [block for block in blocks("docs/operations.md", "sh") if "DedupeWindow" in block]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-ec", measure],
        capture_output=True,
        text=True,
        check=True,
        timeout=WAIT_SECONDS,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(REPOSITORY)},
    )
    said = re.search(r"about (\d+) MB when it is first full and (\d+) MB while", " ".join(page.split()))
    assert said is not None
    found = re.fullmatch(r"full: (\d+) MB\n500,000 ids after a million more: (\d+) MB\n", done.stdout)
    assert found is not None, done.stdout
    for measured, written in zip(found.groups(), said.groups(), strict=True):
        assert int(measured) == pytest.approx(int(written), rel=0.2)


def test_a_partitioned_stream_as_its_page_shows_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _):
            printed = await in_thread(python("docs/partitions.md", 0, url), capsys)
            lines = [line.split() for line in printed.splitlines()]
            acked = sorted((stream, offset) for stream, _, offset in lines[:8])
            assert acked == sorted((stream, offset) for stream, offset, _, _ in lines[8:])
            async with jetstream.connect(url) as js:
                reply = await js.nats.request("jetstream.api.stream.info", b'{"name":"orders"}', 10)
            (example,) = blocks("docs/partitions.md", "json")
            assert list(unlike(json.loads(example), json.loads(reply.data), "stream.info")) == []

    run(scenario())


def test_the_partitions_page_reckons_as_nodes_do() -> None:
    text = (REPOSITORY / "docs" / "partitions.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| [^|]+ \| (?:`([0-9a-f]+)`)? ?\| (\d+) \| (\d+) \|$", text, re.MULTILINE)
    assert len(rows) == 5
    for key, of_four, of_twelve in rows:
        assert [partition_of(bytes.fromhex(key), count) for count in (4, 12)] == [
            int(of_four),
            int(of_twelve),
        ]
