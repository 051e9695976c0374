"""A member's storage is opened under its name, and that name is kept before anything is promised under it."""

import asyncio
from pathlib import Path

import pytest

from envelope.errors import DiskFull
from envelope.types import NodeId
from jetstream.log.disk.os_disk import OsDisk
from jetstream.node.cluster import metadata_part
from jetstream.node.cluster.member_record import MemberRecord, read_record
from jetstream.node.cluster.metadata_part import open_metadata
from jetstream.node.settings.peer_settings import PeerSettings
from metadata.members import member_name
from metadata.node.catalogue.group import MetadataQuorum
from metadata.node.members.changing_member import AsObserver, AsVoter
from metadata.node.peers.dialling import Address, PeerIdentity

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
VOTERS = {node: Address("127.0.0.1", port) for port, node in enumerate((A, B, C), 9000)}
PEERS = PeerSettings(PeerIdentity("test", A), VOTERS, VOTERS[A], VOTERS[A])
FOUNDER = AsVoter(A, frozenset(VOTERS))


async def begun(root: Path, part: AsVoter | AsObserver) -> MetadataQuorum:
    return await open_metadata(OsDisk(root), PEERS, "d", part, is_new=True)


def vote(group: MetadataQuorum, name: NodeId) -> None:
    """Open the storage as one that becomes a voter of that name, and close it again."""
    group.member.open_storage(name).close()


def test_a_founder_that_votes_again_by_its_disk_has_joined(tmp_path: Path) -> None:
    async def test() -> None:
        group = await begun(tmp_path, FOUNDER)
        assert read_record(OsDisk(tmp_path)) == MemberRecord(None, A, (A, B, C))
        await group.stop()
        vote(group, member_name(A, "d"))
        assert read_record(OsDisk(tmp_path)) == MemberRecord(None, member_name(A, "d"))
        again = await begun(tmp_path, AsVoter(member_name(A, "d"), frozenset()))
        await again.stop()

    asyncio.run(test())


def test_a_storage_whose_name_finds_no_room_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        group = await begun(tmp_path, AsObserver(frozenset(VOTERS)))

        def full(*_: object) -> None:
            raise DiskFull("full")

        with monkeypatch.context() as patched:
            patched.setattr(metadata_part, "write_record", full)
            with pytest.raises(DiskFull):
                vote(group, member_name(A, "d"))
        vote(group, member_name(A, "d"))  # it could not, were the first one open
        await group.stop()

    asyncio.run(test())
