"""Fetches that come before this node leads are not lost: a follower repeats them half a minute later."""

from envelope.types import Incarnation, LeaderEpoch, NodeEpoch, NodeId, Offset
from jetstream.node.streams.traffic import EarlyFetches
from jetstream.replica.leader_events import FetchArrived
from jetstream.replica.wire import FetchMessage

LIFE = Incarnation("life")


def fetch(follower: str, leader_epoch: int) -> FetchArrived:
    message = FetchMessage(
        node_epoch=NodeEpoch(1),
        leader_epoch=LeaderEpoch(leader_epoch),
        last_epoch=LeaderEpoch(1),
        log_end=Offset(0),
        synced_end=Offset(0),
        high_watermark=Offset(0),
        asks=True,
    )
    return FetchArrived(NodeId(follower), message)


def test_what_is_asked_of_a_later_reign_outlives_the_news_of_an_earlier_one() -> None:
    """A node that starts hears its followers before it has read that it was elected."""
    early = EarlyFetches()
    early.keep(LIFE, fetch("b", 3))
    early.keep(LIFE, fetch("c", 2))
    early.forget(LIFE, LeaderEpoch(2))
    assert early.taken(LIFE) == (fetch("b", 3),)
    assert early.taken(LIFE) == ()


def test_what_is_asked_of_a_reign_of_others_is_dropped() -> None:
    early = EarlyFetches()
    early.keep(LIFE, fetch("b", 3))
    early.forget(LIFE, LeaderEpoch(3))
    assert early.taken(LIFE) == ()
    early.forget(LIFE, LeaderEpoch(3))


def test_the_newest_fetch_of_each_follower_is_kept_until_the_stream_is_gone() -> None:
    early = EarlyFetches()
    for leader_epoch in (2, 3):
        early.keep(LIFE, fetch("b", leader_epoch))
    early.keep(Incarnation("other"), fetch("b", 3))
    assert early.taken(LIFE) == (fetch("b", 3),)
    early.drop(Incarnation("other"))
    assert early.taken(Incarnation("other")) == ()
