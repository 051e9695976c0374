"""How many replicas a new stream has where nobody says it."""

from envelope.errors import InvalidConfig
from metadata.catalog.commands import SetDefaultReplicas
from metadata.catalog.events import DefaultReplicasSet
from tests.support.catalogs import apply, catalog_of, create, refusal, register


def test_the_default_is_one_until_it_is_set() -> None:
    catalog = catalog_of(register("a"))
    assert catalog.default_replicas == 1
    assert apply(catalog, SetDefaultReplicas(3)) == (DefaultReplicasSet(3),)
    assert catalog.default_replicas == 3
    for number in (0, 16):
        assert isinstance(refusal(apply(catalog, SetDefaultReplicas(number))), InvalidConfig)
    assert catalog.default_replicas == 3
    assert refusal(apply(catalog, create("x", nodes="a"))) is None, "a command says how many"
