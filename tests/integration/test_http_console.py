"""The console's files over HTTP: every browser gets them, with and without a token, and may do little."""

import re
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urljoin

from jetstream.node.http.console.static_files import console_files
from tests.support.http_reading import ask
from tests.support.nodes import nats_and_node, run

SOURCES = Path(__file__).parents[2] / "jetstream" / "node" / "http" / "console" / "static"


def test_everybody_gets_the_page_and_all_that_it_names(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path, http={"port": 0, "token": "secret"}) as (_, node):
            page = await ask(node, "/")
            assert (page.status, page.headers["content-type"]) == (HTTPStatus.OK, "text/html; charset=utf-8")
            named = {urljoin("/", name.decode()) for name in re.findall(rb'"(console/[^"]+)"', page.body)}
            read: set[str] = set()
            assert len(named) > 1
            while named - read:
                for path in named - read:
                    file = await ask(node, path)
                    assert file.status == HTTPStatus.OK, path
                    read.add(path)
                    imported = re.findall(r' from "([^"]+)"', file.body.decode())
                    named |= {urljoin(path, name) for name in imported}
            assert named | {"/"} == set(console_files())
            assert (await ask(node, "/v1/streams")).status == HTTPStatus.UNAUTHORIZED
            for path in ("/console/", "/console/../access.py", "/console/%2e%2e/access.py", "/index.html"):
                assert (await ask(node, path)).status == HTTPStatus.UNAUTHORIZED

    run(scenario())


def test_a_browser_asks_again_and_is_told_that_it_has_these_bytes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path, http={"port": 0}) as (_, node):
            first = await ask(node, "/console/app.js")
            assert first.body == (SOURCES / "app.js").read_bytes()
            assert first.headers["cache-control"] == "no-cache"
            again = await ask(node, "/console/app.js", if_none_match=first.headers["etag"])
            assert (again.status, again.body) == (HTTPStatus.NOT_MODIFIED, b"")
            assert again.headers["etag"] == first.headers["etag"]
            other = await ask(node, "/console/app.js", if_none_match='"another"')
            assert other.body == first.body
            head = await ask(node, "/console/app.js", method="HEAD")
            assert (head.body, head.headers["content-length"]) == (b"", str(len(first.body)))

    run(scenario())


def test_the_page_may_run_its_own_scripts_and_ask_its_own_node_alone() -> None:
    for file in console_files().values():
        headers = dict(file.page.headers)
        policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
        assert policy == {
            "default-src": "'none'",
            "script-src": "'self'",
            "style-src": "'self'",
            "connect-src": "'self'",
            "img-src": "'self' data:",
            "frame-ancestors": "'none'",
            "base-uri": "'none'",
            "form-action": "'none'",
            "require-trusted-types-for": "'script'",
            "trusted-types": "'none'",
        }
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
