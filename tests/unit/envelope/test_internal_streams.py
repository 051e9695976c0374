"""The system's own streams: which group is where, for good."""

import pytest

from envelope.internal_streams import (
    AUDIT,
    CURSORS,
    GROUP_SHARD_STREAMS,
    INTERNAL_STREAMS,
    audit_pattern,
    audit_subject,
    group_shard,
    group_shard_subject,
    is_group_shard,
    is_internal,
)
from envelope.subjects import matches
from envelope.types import StreamName


@pytest.mark.parametrize(
    ("group", "shard"), [("billing", "__cursors/2"), ("a", "__cursors/3"), ("shop/billing", "__cursors/0")]
)
def test_where_a_group_is_never_changes(group: str, shard: str) -> None:
    assert group_shard(group) == shard


def test_every_shard_has_groups_and_plain_cursors_are_elsewhere() -> None:
    found = {group_shard(f"group-{number}") for number in range(200)}
    assert found == {name for name in INTERNAL_STREAMS if is_group_shard(name)} == {*GROUP_SHARD_STREAMS}
    assert len(found) == 8
    assert not is_group_shard(CURSORS)
    assert not is_group_shard(AUDIT)
    assert not is_group_shard("__cursors/8")
    assert all(is_internal(name) for name in found)


def test_a_shard_has_a_subject_of_its_own() -> None:
    assert group_shard_subject("js.api", StreamName("__cursors/3")) == "js.api.cursors.groups.3"


def test_the_audit_binds_the_subject_of_every_change_and_no_request() -> None:
    pattern = audit_pattern("js.api")
    assert matches(pattern, audit_subject("js.api", "stream.create"))
    assert not matches(pattern, "js.api.stream.create")
    assert not matches(pattern, "js.api.audit.create")
