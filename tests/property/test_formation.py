"""Whatever is lost or repeated, and whoever dies when: no two formed sets overlap, nobody promises twice."""

from hypothesis import given, settings
from hypothesis import strategies as st

from envelope.errors import InvalidConfig
from envelope.types import MonotonicNs
from metadata.formation.machine import HEARD_NS, NoticeReceived
from tests.support.example_counts import examples
from tests.support.formations import FormingCluster

STEPS = st.lists(
    st.tuples(st.integers(0, 8), st.integers(0, 7), st.integers(0, 400)), min_size=30, max_size=150
)


def step(cluster: FormingCluster, kind: int, which: int, much: int) -> None:
    """Something happens to one node; the newest notices are the likeliest to be heard."""
    node = cluster.nodes[which % len(cluster.nodes)]
    if kind <= 2:
        cluster.tick(node)
    elif kind <= 6 and cluster.said:
        back = much % min(len(cluster.said), 2 * len(cluster.nodes) if kind < 6 else len(cluster.said))
        dies = {0: "before", 1: "after"}.get(much % 13, "")
        cluster.give(node, NoticeReceived(cluster.said[-1 - back]), dies=dies)
    elif kind == 7:
        node.restart()
    else:
        cluster.now = MonotonicNs(cluster.now + much * HEARD_NS // 400)


@settings(max_examples=examples(300))
@given(st.integers(3, 6), STEPS)
def test_formed_sets_never_overlap_and_nobody_promises_twice(
    count: int, steps: list[tuple[int, int, int]]
) -> None:
    cluster = FormingCluster("abcdef"[:count])
    stopped: set[int] = set()
    for kind, which, much in steps:
        if which % count in stopped:
            continue
        try:
            step(cluster, kind, which, much)
        except InvalidConfig:
            stopped.add(which % count)  # it has told an operator, and is gone
        cluster.check()


@settings(max_examples=examples(100))
@given(STEPS)
def test_as_many_nodes_as_are_waited_for_form_a_cluster_in_the_end(steps: list[tuple[int, int, int]]) -> None:
    cluster = FormingCluster("abc")
    for one in steps:
        step(cluster, *one)
        cluster.check()
    cluster.now = MonotonicNs(cluster.now + HEARD_NS)
    cluster.run()
    assert len({node.record for node in cluster.nodes}) == 1
    assert len(cluster.nodes[0].record.formed) == 3
    cluster.check()
