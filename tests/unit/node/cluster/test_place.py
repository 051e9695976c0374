"""With which part a node begins follows from its directory first, and from its settings where that is new."""

import json
from pathlib import Path

import pytest

from envelope.errors import CorruptDataError, InvalidConfig
from envelope.types import NodeId
from jetstream.log.disk.os_disk import OsDisk
from jetstream.log.disk.state_file import encode_state
from jetstream.node.cluster.member_record import MEMBER_FILE, MemberRecord, read_record, write_record
from jetstream.node.cluster.place import OldLog, PlaceSettings, alone, place_of
from metadata.node.members.changing_member import AsObserver, AsVoter

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
A_ON_D = NodeId("a@d")
NEW = MemberRecord()


def settings(*voters: NodeId, is_reachable: bool = True) -> PlaceSettings:
    return PlaceSettings(node_id=A, directory="d", is_reachable=is_reachable, voters=frozenset(voters))


def voter(name: NodeId, *founders: NodeId) -> AsVoter:
    return AsVoter(name, frozenset(founders))


@pytest.mark.parametrize(
    ("said", "record", "log", "part"),
    [
        (settings(is_reachable=False), NEW, None, voter(A_ON_D, A_ON_D)),
        (settings(), NEW, None, None),
        (settings(), MemberRecord("c1"), None, None),
        (settings(A, B, C), NEW, None, voter(A, A, B, C)),
        (settings(B, C), NEW, None, AsObserver(frozenset((B, C)))),
        # What is kept counts more than what is said.
        (settings(B, C), MemberRecord("c1", A_ON_D, ()), None, voter(A_ON_D)),
        (settings(is_reachable=False), MemberRecord(None, A_ON_D, (A_ON_D,)), None, voter(A_ON_D, A_ON_D)),
        # Logs from before there was a record.
        (settings(A, B, C), NEW, OldLog(was_reachable=True), voter(A, A, B, C)),
        (settings(A, B, C), NEW, OldLog(was_reachable=None), voter(A, A, B, C)),
        (settings(), NEW, OldLog(was_reachable=None), voter(A, A)),
        (settings(is_reachable=False), NEW, OldLog(was_reachable=False), voter(A, A)),
        (settings(), NEW, OldLog(was_reachable=False), voter(A, A)),
    ],
)
def test_the_part_to_begin_with(
    said: PlaceSettings, record: MemberRecord, log: OldLog | None, part: AsVoter | AsObserver | None
) -> None:
    assert place_of(said, record, log) == part


@pytest.mark.parametrize(
    ("said", "record", "log", "problem"),
    [
        (settings(), MemberRecord("c1", NodeId("b@d")), None, "node a has the directory of node b"),
        (
            settings(is_reachable=False),
            MemberRecord("c1", A_ON_D, (A_ON_D,), is_reachable=True),
            None,
            "may be one of several",
        ),
        (settings(), NEW, OldLog(was_reachable=True), "was a voter, and is none of peers.voters now"),
        (settings(B, C), NEW, OldLog(was_reachable=True), "was a voter, and is none of peers.voters now"),
        (settings(A, B, C), NEW, OldLog(was_reachable=False), "was alone, and is not one of several"),
    ],
)
def test_a_directory_that_contradicts_the_settings_is_left_alone(
    said: PlaceSettings, record: MemberRecord, log: OldLog | None, problem: str
) -> None:
    with pytest.raises(InvalidConfig, match=problem):
        place_of(said, record, log)


def test_the_first_of_a_cluster_is_its_only_founder() -> None:
    assert alone(settings()) == voter(A_ON_D, A_ON_D)


def test_what_is_kept_is_found_again(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path)
    assert read_record(disk) == NEW
    for record in (MemberRecord("c1"), MemberRecord("c1", A_ON_D, (A_ON_D, B))):
        write_record(disk, record)
        assert read_record(disk) == record


@pytest.mark.parametrize(
    "content", [b"", b"{}\n", encode_state({"member": 7}), encode_state({"founders": "a"})]
)
def test_a_damaged_record_is_an_error(content: bytes, tmp_path: Path) -> None:
    (tmp_path / MEMBER_FILE).write_bytes(content)
    with pytest.raises(CorruptDataError):
        read_record(OsDisk(tmp_path))


def test_a_record_is_a_line_that_people_can_read(tmp_path: Path) -> None:
    write_record(OsDisk(tmp_path), MemberRecord("c1", A_ON_D))
    line = (tmp_path / MEMBER_FILE).read_text().splitlines()[0]
    assert json.loads(line) == {"cluster_id": "c1", "member": "a@d", "founders": [], "is_reachable": False}
