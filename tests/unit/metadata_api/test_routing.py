"""Which node answers what is asked of any."""

import pytest

from envelope.types import NodeId
from metadata.api.requests import (
    DeleteStreamRequest,
    GetCursorRequest,
    ListCursorsRequest,
    ReassignStreamRequest,
    Request,
    StreamInfoRequest,
    TruncateStreamRequest,
)
from metadata.api.routing import home_of
from metadata.catalog.catalog import Catalog

LEADER = NodeId("m")


@pytest.mark.parametrize(
    "asked",
    [
        StreamInfoRequest(name="new"),
        DeleteStreamRequest(name="new"),
        TruncateStreamRequest(name="new", before=1),
        ReassignStreamRequest(name="new", cancel=True),
        GetCursorRequest(consumer="new", stream="new"),
        ListCursorsRequest(),
    ],
    ids=lambda asked: type(asked).__name__,
)
def test_what_a_node_does_not_know_is_asked_of_who_leads_the_metadata(asked: Request) -> None:
    """A stream that was created a moment ago may not be in its catalogue yet."""
    assert home_of(asked, Catalog(), LEADER) == LEADER
