"""Whatever is proposed, nothing is accepted that nodes of the cluster's feature level cannot read."""

import json

from hypothesis import given
from hypothesis import strategies as st

from metadata.catalog import snapshot
from metadata.catalog.catalog import Catalog, feature_refusal
from metadata.catalog.commands import Command, RegisterNode, SetFeatureLevel, feature_of
from metadata.catalog.events import CommandRefused
from tests.support.catalogs import apply, commands, register

founding = st.sampled_from((None, register("n1"), register("n1", feature_level=None)))


@given(founding, st.lists(commands, max_size=40))
def test_nothing_above_the_level_is_accepted_and_the_level_never_falls(
    first: RegisterNode | None, given_commands: list[Command]
) -> None:
    catalog = Catalog()
    for command in given_commands if first is None else [first, *given_commands]:
        before = catalog.cluster
        is_new = not catalog.nodes()
        error = feature_refusal(catalog, command)
        is_refused = isinstance(apply(catalog, command)[0], CommandRefused)
        feature = feature_of(command)
        if feature is not None and feature.level > before.feature_level and not is_refused:
            assert isinstance(command, RegisterNode), f"{command} at level {before.feature_level}"
            assert is_new
        assert error is None or is_refused, "what is not proposed would be refused"
        assert catalog.cluster.feature_level >= before.feature_level
        if not isinstance(command, SetFeatureLevel) and not is_new:
            assert catalog.cluster.feature_level == before.feature_level


@given(founding, st.lists(commands, max_size=40))
def test_a_snapshot_at_level_0_is_of_format_9_and_has_no_field_of_a_later_one(
    first: RegisterNode | None, given_commands: list[Command]
) -> None:
    catalog = Catalog()
    for command in given_commands if first is None else [first, *given_commands]:
        apply(catalog, command)
    data = snapshot.encode(catalog)
    level = catalog.cluster.feature_level
    assert int.from_bytes(data[4:8], "little") == 9 + level
    assert ("default_replicas" in json.loads(data[snapshot.HEADER_BYTES :])) == (level > 0)
    assert snapshot.decode(data).cluster == catalog.cluster
