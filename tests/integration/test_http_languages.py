"""The examples of docs/http.md, run as they are written but for the port: each reads the same stream."""

import asyncio
import json
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

import jetstream
from tests.support.browser import browser
from tests.support.commands import REPOSITORY
from tests.support.node_packages import NotInstallable, installed_examples
from tests.support.nodes import nats_and_node, run
from tests.support.rust_programs import NotBuildable, built

PAGE: Final = (REPOSITORY / "docs" / "http.md").read_text()
PORT: Final = ":9293"
RECORDS: Final = 60


def example(heading: str, port: int) -> str:
    """The first block below a heading, for a node at another port."""
    block = re.search(rf"^### {re.escape(heading)}\n.*?^```\w+\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert block is not None, f"there is no example for {heading}"
    return block[1].replace(PORT, f":{port}")


@asynccontextmanager
async def orders(directory: Path) -> AsyncIterator[int]:
    """The stream that the page reads, on a node whose HTTP port this is."""
    async with (
        nats_and_node(directory, http={"port": 0}) as (url, node),
        jetstream.connect(url) as js,
    ):
        await js.streams.create("orders", "orders.>")
        for number in range(RECORDS):
            await js.publish(f"orders.{'eu' if number % 3 else 'us'}", str(number).encode())
        assert node.http_address is not None
        yield node.http_address[1]


async def printed(directory: Path, *command: str) -> str:
    """Run a program that must succeed; return what it printed."""
    process = await asyncio.create_subprocess_exec(
        *command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    output, complaint = await process.communicate()
    assert process.returncode == 0, complaint.decode()
    return output.decode()


def test_curl_reads_lines_and_arrow(tmp_path: Path) -> None:
    if shutil.which("curl") is None or shutil.which("jq") is None:
        pytest.skip("THE EXAMPLE FOR CURL WAS NOT RUN: there is no curl, or no jq")

    async def scenario() -> None:
        async with orders(tmp_path) as port:
            text = await printed(tmp_path, "bash", "-euc", example("curl", port))
            assert text.splitlines() == [str(number) for number in range(RECORDS)]
            program = "import pyarrow as pa; print(pa.ipc.open_stream('orders.arrows').read_all().num_rows)"
            assert await printed(tmp_path, sys.executable, "-c", program) == f"{RECORDS}\n"

    run(scenario())


@pytest.mark.parametrize("heading", ["polars", "pandas and pyarrow", "DuckDB"])
def test_a_python_library_reads_the_stream_by_its_url(tmp_path: Path, heading: str) -> None:
    async def scenario() -> None:
        async with orders(tmp_path) as port:
            text = await printed(tmp_path, sys.executable, "-c", example(heading, port))
            for region, count in (("eu", 40), ("us", 20)):
                assert re.search(rf"orders\.{region}\W+{count}\b", text), text

    run(scenario())


@pytest.mark.slow(
    "tests/integration/test_http_languages.py::test_a_python_library_reads_the_stream_by_its_url"
)
def test_node_js_reads_the_stream_by_its_url(tmp_path: Path) -> None:
    try:
        packages = installed_examples()
    except NotInstallable as error:
        pytest.skip(f"THE EXAMPLE FOR JAVASCRIPT WAS NOT RUN: {error}")

    async def scenario() -> None:
        async with orders(tmp_path) as port:
            program = packages / f"http-{port}.mjs"  # beside the packages that it imports
            program.write_text(example("JavaScript", port))
            try:
                assert await printed(tmp_path, "node", str(program)) == f"{RECORDS} orders.us\n"
            finally:
                program.unlink()

    run(scenario())


@pytest.mark.slow(
    "tests/integration/test_http_languages.py::test_a_python_library_reads_the_stream_by_its_url"
)
def test_a_browser_reads_the_stream_by_its_url(tmp_path: Path) -> None:
    """The program of Node.js, but that the page has the library by a script, and not by an import."""
    try:
        library = installed_examples() / "node_modules" / "apache-arrow" / "Arrow.es2015.min.js"
    except NotInstallable as error:
        pytest.skip(f"THE EXAMPLE FOR JAVASCRIPT WAS NOT RUN IN A BROWSER: {error}")

    async def scenario() -> None:
        async with orders(tmp_path) as port, browser() as chromium:
            page = await chromium.new_page()
            said: list[str] = []
            page.on("console", lambda message: said.append(message.text) if message.type == "log" else None)
            # A page of the node's own without the console's policy, which lets no library in.
            await page.goto(f"http://127.0.0.1:{port}/livez")
            await page.add_script_tag(path=library)
            head, _, program = example("JavaScript", port).partition("\n\n")
            assert head == 'import { tableFromIPC } from "apache-arrow";'
            await page.evaluate(f"async () => {{ const {{ tableFromIPC }} = Arrow;\n{program} }}")
            assert said == [f"{RECORDS} orders.us"]

    run(scenario())


@pytest.mark.slow(
    "tests/integration/test_http_languages.py::test_a_python_library_reads_the_stream_by_its_url"
)
def test_rust_reads_the_stream_by_its_url(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with orders(tmp_path) as port:
            source = example("Rust", port).replace(
                f'"http://127.0.0.1:{port}', '&format!("http://127.0.0.1:{}'
            )
            source = source.replace('format=arrow";', 'format=arrow", std::env::args().nth(1).unwrap());')
            try:
                program = await asyncio.to_thread(built, source)
            except NotBuildable as error:
                pytest.skip(f"THE EXAMPLE FOR RUST WAS NOT RUN: {error}")
            assert await printed(tmp_path, str(program), str(port)) == f"{RECORDS} records\n"

    run(scenario())


def test_the_description_of_the_port_names_what_the_page_names() -> None:
    document = json.loads((REPOSITORY / "docs" / "openapi.json").read_text())
    for path in document["paths"]:
        assert path in PAGE, f"{path} is not in docs/http.md"
    parameters = document["paths"]["/v1/streams/{name}/records"]["get"]["parameters"]
    for parameter in parameters[1:]:
        assert f"`{parameter['name']}`" in PAGE
