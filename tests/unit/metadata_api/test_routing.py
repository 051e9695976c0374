"""Which node answers what is asked of any."""

import pytest

from envelope.internal_streams import GROUP_SHARDS, group_shard
from envelope.types import LogIndex, NodeId
from metadata.api.requests import (
    DeleteGroupRequest,
    DeleteStreamRequest,
    GetCursorRequest,
    GroupInfoRequest,
    GroupPlace,
    LimitNamespaceRequest,
    ListCursorsRequest,
    ListGroupsRequest,
    ListNamespacesRequest,
    NamespaceInfoRequest,
    ReassignStreamRequest,
    RemoveNodeRequest,
    Request,
    ResetGroupRequest,
    SetTxidRequest,
    StreamInfoRequest,
    TruncateStreamRequest,
)
from metadata.api.routing import home_of, node_subject
from metadata.catalog.catalog import Catalog
from metadata.catalog.commands import Command
from tests.support.catalogs import create, register

LEADER = NodeId("m")


@pytest.mark.parametrize(
    "asked",
    [
        StreamInfoRequest(name="new"),
        DeleteStreamRequest(name="new"),
        TruncateStreamRequest(name="new", before=1),
        SetTxidRequest(name="new", txid=1),
        ReassignStreamRequest(name="new", cancel=True),
        RemoveNodeRequest(node="new"),
        LimitNamespaceRequest(name="new", streams=1),
        NamespaceInfoRequest(),
        ListNamespacesRequest(),
        GetCursorRequest(consumer="new", stream="new"),
        ListCursorsRequest(),
        ListGroupsRequest(),
        ListGroupsRequest(shard="__cursors/1"),
        GroupInfoRequest(group="new"),
        ResetGroupRequest(group="new", cursors=[GroupPlace(stream="new", offset=1)]),
        DeleteGroupRequest(group="new"),
    ],
    ids=lambda asked: type(asked).__name__,
)
def test_what_a_node_does_not_know_is_asked_of_who_leads_the_metadata(asked: Request) -> None:
    """A stream that was created a moment ago may not be in its catalogue yet."""
    assert home_of(asked, Catalog(), LEADER) == LEADER


def catalog_with(*shards: int) -> Catalog:
    """Two nodes and these shards; the even ones are led by `n1`, the others by `n2`."""
    catalog = Catalog()
    commands: list[Command] = [register("n1"), register("n2")]
    commands += [create(f"__cursors/{number}", nodes=(f"n{1 + number % 2}",)) for number in shards]
    for index, command in enumerate(commands, start=1):
        catalog.apply(LogIndex(index), command)
    return catalog


@pytest.mark.parametrize(
    "asked",
    [
        GroupInfoRequest(group="billing"),
        ResetGroupRequest(group="billing", cursors=[GroupPlace(stream="new", offset=1)]),
        DeleteGroupRequest(group="billing"),
        ListGroupsRequest(shard="__cursors/2"),
    ],
    ids=lambda asked: type(asked).__name__,
)
def test_a_group_is_asked_of_who_leads_its_shard(asked: Request) -> None:
    assert group_shard("billing") == "__cursors/2"
    assert home_of(asked, catalog_with(1, 2), LEADER) == "n1"
    assert home_of(asked, catalog_with(1), LEADER) == LEADER, "another shard does not count"


def test_any_node_lists_the_groups_once_it_knows_every_shard() -> None:
    """One that was created a moment ago, and is not in its catalogue yet, would be left out."""
    asked = ListGroupsRequest(prefix="a")
    assert home_of(asked, catalog_with(*range(GROUP_SHARDS)), LEADER) is None
    assert home_of(asked, catalog_with(*range(GROUP_SHARDS - 1)), LEADER) == LEADER


def test_one_node_is_asked_behind_its_name() -> None:
    assert node_subject("js.api", NodeId("n1"), "group.list") == "js.api.node.n1.group.list"
