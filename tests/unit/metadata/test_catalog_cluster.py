"""The row of the whole cluster: how many voters are wanted, and its id."""

import pytest

from envelope.errors import InvalidConfig
from metadata.catalog.commands import NameCluster, SetVoters
from metadata.catalog.events import ClusterChanged
from metadata.catalog.tables import ClusterRow
from metadata.features import LATEST_LEVEL
from tests.support.catalogs import apply, catalog_of, refusal, register

FIRST, SECOND = "0123456789abcdef" * 2, "f" * 32


def test_one_three_or_five_voters_can_be_wanted_and_nobody_need_say() -> None:
    catalog = catalog_of(register("a"))
    assert catalog.cluster.voters_wanted is None
    for number in (1, 3, 5, None):
        assert apply(catalog, SetVoters(number)) == (
            ClusterChanged(ClusterRow(feature_level=LATEST_LEVEL, voters_wanted=number)),
        )
    apply(catalog, SetVoters(5))
    for number in (-1, 0, 2, 4, 7):
        assert isinstance(refusal(apply(catalog, SetVoters(number))), InvalidConfig)
    assert catalog.cluster.voters_wanted == 5


def test_a_cluster_keeps_its_first_id() -> None:
    catalog = catalog_of(register("a"))
    assert catalog.cluster.cluster_id is None
    for cluster_id in (FIRST, SECOND, FIRST):
        assert apply(catalog, NameCluster(cluster_id)) == (
            ClusterChanged(ClusterRow(feature_level=LATEST_LEVEL, cluster_id=FIRST)),
        )
    assert catalog.cluster.cluster_id == FIRST


@pytest.mark.parametrize("cluster_id", ["", FIRST[:-1], FIRST.upper(), FIRST + "\n", "g" * 32])
def test_an_id_is_32_hexadecimal_digits(cluster_id: str) -> None:
    catalog = catalog_of(register("a"))
    assert isinstance(refusal(apply(catalog, NameCluster(cluster_id))), InvalidConfig)
    assert catalog.cluster.cluster_id is None
