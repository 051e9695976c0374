"""The audit as its stream and its log have it."""

import asyncio
import json
from typing import Any

import pytest

from envelope.errors import StreamOffline, UnknownStream
from envelope.internal_streams import AUDIT
from jetstream import JetstreamClient
from tests.support.nodes import WAIT_SECONDS
from tests.support.pauses import pause

ENABLED = {"enabled": True}
"""Settings of a node that puts changes on record."""


async def read(client: JetstreamClient, count: int) -> list[dict[str, Any]]:
    """Return what is in the audit's stream, once it has so many records."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            try:
                values = [record.value async for record in client.read(AUDIT)]
            except (UnknownStream, StreamOffline):
                values = []
            if len(values) >= count:
                return [json.loads(value or b"") for value in values]
            await pause()


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """Return what the log of a node in this process has."""
    return [json.loads(each.getMessage()) for each in caplog.records if each.name == "jetstream.audit"]
