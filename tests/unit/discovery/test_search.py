"""A new node finds its cluster, or begins one where it is told to and nobody answers."""

from dataclasses import replace

import pytest

from envelope.errors import InvalidConfig
from envelope.types import NodeId
from metadata.discovery.notices import NodePlace, Notice
from metadata.discovery.search import MORE_QUESTIONS, QUESTIONS, Search

OWN = Notice(NodePlace(NodeId("a"), "h", 1), "da", asks=True)
FIRST = replace(OWN, begins=True)
OTHER = Notice(NodePlace(NodeId("b"), "h", 2), "db")
MEMBER = replace(OTHER, cluster_id="c1", voters=(OTHER.source,))


def asked(search: Search, times: int) -> None:
    for _ in range(times):
        assert search.ask() == search.own


def test_a_node_asks_until_it_hears_of_voters() -> None:
    search = Search(OWN)
    asked(search, 2 * QUESTIONS)
    search.hear(OTHER)
    search.hear(OWN)
    asked(search, 1)
    search.hear(MEMBER)
    asked(search, 1)
    search.hear(MEMBER)
    asked(search, MORE_QUESTIONS - 1)
    assert search.ask() is None
    assert (search.found, search.is_first) == (MEMBER, False)


def test_a_node_that_is_told_to_begins_a_cluster_that_nobody_answers_for() -> None:
    search = Search(FIRST)
    search.hear(OTHER)
    asked(search, QUESTIONS)
    assert not search.is_first
    assert search.ask() is None
    assert (search.is_first, search.found) == (True, None)


def test_questions_that_nobody_may_have_heard_do_not_count() -> None:
    search = Search(FIRST)
    asked(search, QUESTIONS)
    search.lost()
    asked(search, QUESTIONS)
    assert search.ask() is None


def test_a_node_that_is_told_to_begin_a_cluster_that_is_there_joins_it() -> None:
    search = Search(FIRST)
    asked(search, QUESTIONS)
    search.hear(MEMBER)
    asked(search, MORE_QUESTIONS)
    assert search.ask() is None
    assert (search.found, search.is_first) == (MEMBER, False)


@pytest.mark.parametrize(
    ("own", "heard", "problem"),
    [
        (FIRST, replace(OTHER, begins=True), "node a is to begin the cluster, and so is b at h:2"),
        (OWN, replace(OTHER, source=NodePlace(NodeId("a"), "h", 2)), "node a is another node too, a at h:2"),
        (OWN, replace(OTHER, source=NodePlace(NodeId("b"), "h", 1)), "node a is where b at h:1 says"),
        (
            replace(OWN, cluster_id="c2"),
            MEMBER,
            "has the directory of cluster c2, and b at h:2 is of cluster c1",
        ),
    ],
)
def test_nodes_that_contradict_each_other_need_an_operator(own: Notice, heard: Notice, problem: str) -> None:
    with pytest.raises(InvalidConfig, match=problem):
        Search(own).hear(heard)


def test_a_node_of_the_same_cluster_comes_back() -> None:
    search = Search(replace(OWN, cluster_id="c1"))
    search.hear(MEMBER)
    assert search.found == MEMBER


def test_a_node_that_has_found_its_cluster_is_contradicted_by_another_one_of_it() -> None:
    search = Search(OWN)
    asked(search, 1)
    search.hear(MEMBER)
    asked(search, MORE_QUESTIONS)
    with pytest.raises(InvalidConfig, match="node a is another node too"):
        search.hear(replace(MEMBER, source=NodePlace(NodeId("a"), "h", 2), directory="other"))
