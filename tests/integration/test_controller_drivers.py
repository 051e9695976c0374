"""Leases and elections in a cluster whose nodes have real files and real connections."""

import asyncio
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from envelope.errors import Fenced, StreamOffline
from envelope.types import LogIndex, NodeEpoch, NodeId
from metadata.catalog.commands import ForgetNode, SetVoters
from metadata.node.timers.movable_timer import now
from metadata.raft.configuration import Configuration
from metadata.raft.messages.node_messages import LeaseGranted
from tests.support.catalogs import create, register
from tests.support.metadata_members import MS
from tests.support.sockets import run
from tests.support.stewarded_nodes import LONG, SHORT, StewardedNodes, nodes

A, B, C = (NodeId(name) for name in "abc")


def test_every_node_is_granted_a_lease_and_has_it_renewed(tmp_path: Path) -> None:
    async def test() -> None:
        async with nodes("abc", tmp_path) as cluster:
            first = [node.membership.lease.until for node in cluster.all]
            await cluster.until(lambda: all(len(node.grants) > 3 for node in cluster.all))
            assert all(
                node.membership.lease.until > until for node, until in zip(cluster.all, first, strict=True)
            )
            for node in cluster.all:
                newest = node.grants[-1]
                assert newest.lease_ns == SHORT.lease_ns
                assert node.membership.lease.until <= newest.asked_at + SHORT.lease_ns * 15 // 16

    run(test())


def test_a_lease_that_comes_anew_is_told_once_and_a_renewal_is_not(tmp_path: Path) -> None:
    async def test() -> None:
        async with nodes("abc", tmp_path, replace(SHORT, lease_ns=60_000 * MS)) as cluster:
            assert [node.resumed for node in cluster.all] == [1, 1, 1]
            follower = next(node for node in cluster.all if node is not cluster.leader)
            follower.membership.unheard(
                NodeId("nobody")
            )  # speaks more often, so that it need not be waited for
            count = len(follower.grants)
            await cluster.until(lambda: len(follower.grants) > count + 2)
            assert follower.resumed == 1
            follower.membership.lease.until = now()  # as after a stall
            await cluster.until(lambda: follower.resumed == 2)
            assert follower.has_lease

    run(test())


def test_only_the_metadata_leader_knows_who_is_alive(tmp_path: Path) -> None:
    async def test() -> None:
        async with nodes("abc", tmp_path) as cluster:
            leader = cluster.leader
            assert leader.controller_driver.alive() == frozenset((A, B, C))
            assert [node.controller_driver.alive() for node in cluster.all if node is not leader] == [
                None,
                None,
            ]
            lost = next(node for node in cluster.all if node is not leader)
            await lost.stop()
            left = frozenset((A, B, C)) - {lost.node_id}
            await cluster.until(  # the other one says so if a slow machine has had it elected meanwhile
                lambda: any(node.controller_driver.alive() == left for node in cluster.running)
            )

    run(test())


@pytest.mark.parametrize("metadata_leader", [A, B])
def test_a_killed_nodes_streams_get_leaders_when_the_others_report_it(
    metadata_leader: NodeId, tmp_path: Path
) -> None:
    """Leases do not end here and are seldom asked for: only reports, made at once, bring the elections."""

    async def test() -> None:
        async with nodes("abc", tmp_path, LONG) as cluster:
            for number in range(20):
                await cluster.create(f"s{number}", "abc")
            await cluster.create("other", "cb")
            await cluster.led_by(metadata_leader)
            await cluster.node(A).stop()
            for node in (B, C):
                cluster.node(node).membership.unheard(A)
            led = {B, C}  # C, if the controller is there and has not heard of B yet
            await cluster.until(lambda: all(cluster.row(f"s{number}").leader in led for number in range(20)))
            assert cluster.row("other").leader == C, "who is heard keeps its streams"
            assert cluster.row("other").leader_epoch == 1

    run(test())


def test_whoever_is_confirmed_knows_of_everything_that_was_decided_before(tmp_path: Path) -> None:
    async def test() -> None:
        async with nodes("abc", tmp_path, LONG) as cluster:
            leader = cluster.leader
            for number in range(20):
                applied = await leader.group.propose(create(f"s{number}", nodes="abc"))
                applied.answer()
                decided = leader.group.catalog.applied
                await asyncio.gather(*(node.membership.confirm_leadership() for node in cluster.all))
                assert all(node.group.catalog.applied >= decided for node in cluster.all)

    run(test())


def test_who_cannot_be_confirmed_is_told_so(tmp_path: Path) -> None:
    async def test() -> None:
        async with nodes("abc", tmp_path, LONG) as cluster:
            await cluster.led_by(B)
            for node in (B, C):
                await cluster.node(node).stop()
            with pytest.raises(StreamOffline, match="nobody confirms"):
                await cluster.node(A).membership.confirm_leadership()

    run(test())


def test_one_follower_of_two_that_hears_nothing_deposes_nobody(tmp_path: Path) -> None:
    async def test() -> None:
        async with nodes("abc", tmp_path, LONG) as cluster:
            await cluster.create("orders", "abc")
            await cluster.led_by(C)
            reporter, other = cluster.node(B), cluster.node(C)
            count = len(reporter.grants)
            reporter.membership.unheard(A)
            await cluster.until(lambda: len(reporter.grants) > count + 3)  # as often as the report was made
            assert cluster.row().leader == A
            reporter.membership.heard(A)
            other.membership.unheard(A)
            reporter.membership.unheard(A)
            await cluster.until(lambda: cluster.row().leader == B)

    run(test())


def test_a_node_is_reported_until_it_is_heard_again(tmp_path: Path) -> None:
    async def test() -> None:
        async with nodes("abc", tmp_path, LONG) as cluster:
            await cluster.led_by(C)
            told, reporter = cluster.leader.told_unheard, cluster.node(B).membership
            reporter.unheard(A)
            await cluster.until(lambda: told.count(A) > 2)
            reporter.heard(A)
            reporter.unheard(NodeId("x"))
            await cluster.until(lambda: told.count(NodeId("x")) > 2)
            assert A not in told[told.index(NodeId("x")) :]

    run(test())


def test_a_silent_leader_is_replaced_after_its_lease_and_not_before(tmp_path: Path) -> None:
    async def test() -> None:
        async with nodes("abc", tmp_path) as cluster:
            await cluster.create("orders", "abc")
            silent = cluster.node(A)
            lease = silent.membership.lease
            await silent.stop()
            assert lease.is_valid(now())
            await cluster.until(lambda: cluster.row().leader == B)
            assert not lease.is_valid(now()), "two would have had the right to lead"

    run(test())


def test_who_led_the_metadata_log_grants_nothing_that_no_majority_confirms(tmp_path: Path) -> None:
    async def test() -> None:
        async with nodes("abc", tmp_path) as cluster:
            former = cluster.leader
            for node in cluster.all:
                if node is not former:
                    await node.stop()
            alone_since = now()
            assert former.group.leader == former.node_id, "it has not noticed yet"
            former.membership.unheard(NodeId("nobody"))  # has it ask for its lease, at once and often
            await cluster.until(lambda: former.group.leader is None)
            assert former.controller_driver.alive() is None
            assert [grant for grant in former.grants if grant.asked_at > alone_since] == []
            await cluster.until(lambda: not former.has_lease)

    run(test())


def test_a_steward_knows_nothing_before_a_majority_has_confirmed_its_term(tmp_path: Path) -> None:
    async def test() -> None:
        async with nodes("abc", tmp_path) as cluster:
            former = cluster.leader
            for node in cluster.all:
                if node is not former:
                    await node.stop()
            former.controller_driver.restored()  # has it begin anew, while it takes itself for the leader
            assert former.group.leader == former.node_id
            await cluster.until(
                lambda: former.group.leader is None or former.controller_driver.alive() is not None
            )
            assert former.group.leader is None

    run(test())


async def has_it_all_handed_over(cluster: StewardedNodes, stopping: NodeId) -> None:
    for number in range(20):
        await cluster.create(f"s{number}", "abc" if number % 2 else "bca")
    await cluster.until(lambda: cluster.leader.group.catalog.count_streams() == 20)
    epochs = {
        row.name: row.leader_epoch for row in cluster.leader.group.catalog.streams() if row.leader == stopping
    }
    assert len(epochs) == 10
    assert await cluster.node(stopping).membership.stop(deadline_seconds=20.0)
    rows = cluster.node(stopping).group.catalog.streams()
    assert all(row.leader not in (None, stopping) for row in rows)
    assert {row.name: row.leader_epoch - 1 for row in rows if row.name in epochs} == epochs


@pytest.mark.parametrize("metadata_leader", [A, B])
def test_a_node_that_stops_has_its_streams_led_by_others_first(
    metadata_leader: NodeId, tmp_path: Path
) -> None:
    async def test() -> None:
        async with nodes("abc", tmp_path, LONG) as cluster:
            await cluster.led_by(metadata_leader)
            await has_it_all_handed_over(cluster, A)

    run(test())


def test_a_new_metadata_leader_does_not_elect_a_node_that_is_stopping(tmp_path: Path) -> None:
    async def test() -> None:
        async with nodes("abc", tmp_path, LONG) as cluster:
            await cluster.create("orders", "bac")
            await cluster.led_by(B)
            assert await cluster.node(A).membership.stop(deadline_seconds=20.0)
            await cluster.led_by(C)
            for node in (A, C):
                cluster.node(node).membership.unheard(B)
            await cluster.until(lambda: cluster.row().leader == C)

    run(test())


def test_a_stream_that_nobody_else_can_lead_holds_up_no_stop(tmp_path: Path) -> None:
    async def test() -> None:
        async with nodes("abc", tmp_path, LONG) as cluster:
            await cluster.create("orders", "a")
            assert await cluster.node(A).membership.stop(deadline_seconds=20.0)
            assert cluster.row().leader == A

    run(test())


def test_a_stop_ends_at_its_deadline_if_there_is_no_majority(tmp_path: Path) -> None:
    async def test() -> None:
        async with nodes("abc", tmp_path, LONG) as cluster:
            await cluster.create("orders", "abc")
            for node in cluster.all[1:]:
                await node.stop()
            assert not await cluster.node(A).membership.stop(deadline_seconds=0.2)

    run(test())


def test_a_stop_waits_for_nobody_who_is_not_heard(tmp_path: Path) -> None:
    async def test() -> None:
        async with nodes("abc", tmp_path, LONG) as cluster:
            await cluster.create("orders", "abc")
            for node in cluster.all[1:]:
                await node.stop()
            async with asyncio.TaskGroup() as tasks:
                stop = tasks.create_task(cluster.node(A).membership.stop(deadline_seconds=20.0))
                for other in (B, C):
                    cluster.node(A).membership.unheard(other)
            assert stop.result()

    run(test())


def test_the_process_of_an_earlier_start_is_told_to_stop(tmp_path: Path) -> None:
    async def test() -> None:
        async with nodes("abc", tmp_path) as cluster:
            replaced = next(node for node in cluster.all if node is not cluster.leader)
            (await cluster.leader.group.propose(register(replaced.node_id))).answer()
            assert replaced.task is not None
            await asyncio.wait([replaced.task])
            error = replaced.task.exception()
            assert isinstance(error, ExceptionGroup)
            [fenced] = error.exceptions
            assert isinstance(fenced, Fenced)
            assert fenced.detail == {"node_epoch": NodeEpoch(2)}

    run(test())


def test_a_node_that_starts_again_is_elected_for_the_stream_that_nobody_else_has(tmp_path: Path) -> None:
    async def test() -> None:
        async with nodes("abc", tmp_path, LONG) as cluster:
            await cluster.create("orders", "a")
            node = cluster.node(A)
            await node.stop()
            node.start(cluster.voters)
            assert await node.register() == 2
            await cluster.until(lambda: cluster.row().leader_epoch == 2 and node.has_lease)
            assert cluster.row().leader == A

    run(test())


def test_the_only_voter_has_a_lease_of_its_own_and_leads_its_streams(tmp_path: Path) -> None:
    async def test() -> None:
        async with nodes("a", tmp_path, LONG) as cluster:
            [node] = cluster.all
            await cluster.create("orders", "a")
            await node.stop()
            node.start(cluster.voters)
            await node.register()
            await cluster.until(lambda: cluster.row().leader_epoch == 2 and node.has_lease)
            assert cluster.row().leader == A

    run(test())


def test_an_unclean_election_is_told_loudly(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with nodes("abc", tmp_path, SHORT) as cluster:
            await cluster.create("orders", "ab", unclean_election=True)
            await cluster.shrink(to="a")
            await cluster.led_by(C)
            await cluster.node(A).stop()
            await cluster.until(lambda: cluster.row().leader == B)

    with caplog.at_level(logging.ERROR, "metadata.node.leases.controller_driver"):
        run(test())
    [told] = caplog.messages
    assert "stream=orders leader=b" in told
    assert "runbook=RB-10" in told
    assert told.endswith("in sync were a")


def test_a_steward_begins_anew_when_the_whole_catalogue_was_replaced(tmp_path: Path) -> None:
    async def test() -> None:
        async with nodes("abc", tmp_path, LONG) as cluster:
            steward = cluster.leader.controller_driver
            steward.restored()
            assert steward.alive() is None
            await cluster.until(lambda: steward.alive() == frozenset())

    run(test())


def test_a_grant_for_another_start_is_worth_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        async with nodes("abc", tmp_path, LONG) as cluster:
            node = cluster.node(A)
            node.membership.lease.until = now()
            node.group.member.send(
                LeaseGranted(
                    source=B,
                    target=A,
                    node_epoch=NodeEpoch(7),
                    asked_at=now(),
                    lease_ns=LONG.lease_ns,
                    index=LogIndex(0),
                )
            )
            node.membership.unheard(NodeId("nobody"))
            await cluster.until(lambda: node.resumed == 2)
            assert node.membership.lease.until <= node.grants[-1].asked_at + LONG.lease_ns * 15 // 16

    run(test())


def members_of(cluster: StewardedNodes) -> Configuration | None:
    """Return the members, once no change of them is under way and the log names them."""
    quorum = cluster.leader.group.member.membership()
    is_settled = quorum is not None and not quorum.is_changing and not quorum.is_first
    return quorum.configuration if quorum is not None and is_settled else None


def test_a_cluster_has_one_id_and_its_log_names_its_voters(tmp_path: Path) -> None:
    async def test() -> None:
        async with nodes("abc", tmp_path, LONG) as cluster:
            await cluster.until(lambda: members_of(cluster) == Configuration((A, B, C)))
            await cluster.until(lambda: all(node.group.catalog.cluster.cluster_id for node in cluster.all))
            (cluster_id,) = {node.group.catalog.cluster.cluster_id for node in cluster.all}
            followers = [node for node in cluster.all if node is not cluster.leader]
            assert [node.group.member.membership() for node in followers] == [None, None]
            await cluster.led_by(followers[0].node_id)
            await cluster.create("orders", "abc")  # committed in the new term, with whatever came before
            assert {node.group.catalog.cluster.cluster_id for node in cluster.all} == {cluster_id}

    run(test())


def test_fewer_voters_are_left_where_fewer_are_wanted(tmp_path: Path) -> None:
    async def test() -> None:
        async with nodes("abc", tmp_path, LONG) as cluster:
            await cluster.led_by(B)
            (await cluster.node(A).group.propose(SetVoters(1))).answer()
            await cluster.until(lambda: members_of(cluster) == Configuration((B,)))
            for node in (A, C):
                await cluster.node(node).stop()
            await cluster.create("orders", "b")
            assert cluster.row().leader == B, "it needs nobody else"

    run(test())


def test_a_removed_voter_keeps_its_vote_and_goes_first_where_fewer_are_wanted(tmp_path: Path) -> None:
    settings = replace(LONG, voter_replace_after_ns=1_000 * MS)

    def is_silent(cluster: StewardedNodes) -> bool:
        quorum = cluster.leader.group.member.membership()
        return quorum is not None and not quorum.is_heard(C, now(), settings.voter_replace_after_ns)

    async def test() -> None:
        async with nodes("abcde", tmp_path, settings) as cluster:
            await cluster.led_by(A)
            await cluster.node(C).stop()
            (await cluster.node(A).group.propose(ForgetNode(C))).answer()
            await cluster.until(lambda: is_silent(cluster))
            all_voters = Configuration((A, B, C, NodeId("d"), NodeId("e")))
            assert members_of(cluster) == all_voters, "nobody can take its vote over"
            (await cluster.node(A).group.propose(SetVoters(3))).answer()
            left = Configuration((A, B, NodeId("d")))
            await cluster.until(lambda: members_of(cluster) == left)

    run(test())
