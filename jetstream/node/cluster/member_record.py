"""The record of a node's place in the cluster, beside its metadata log.

name    content
member  state file: ``cluster_id``, of the cluster that the directory belongs to, once that has one;
        ``member``, under which name it has taken part in the metadata group, once it has; ``founders``,
        the members with which that group began, none if it was joined; ``is_reachable``, whether other nodes
        could ever dial it, so that there may be some
"""

from dataclasses import dataclass
from typing import Final

from pydantic import TypeAdapter, ValidationError

from envelope.errors import CorruptDataError
from envelope.types import NodeId
from jetstream.log.disk.port import Disk
from jetstream.log.disk.state_file import decode_state, read_whole, write_state

MEMBER_FILE: Final = "member"


@dataclass(frozen=True, slots=True)
class MemberRecord:
    """See the module; durable."""

    cluster_id: str | None = None
    member: NodeId | None = None
    founders: tuple[NodeId, ...] = ()
    is_reachable: bool = False


_RECORD: Final = TypeAdapter(MemberRecord)


def read_record(disk: Disk) -> MemberRecord:
    """Return what is kept; blocks.

    Raises:
        CorruptDataError: the file is damaged; under which name the node has voted is not known any more.
    """
    if not disk.exists(MEMBER_FILE):
        return MemberRecord()
    try:
        return _RECORD.validate_python(decode_state(read_whole(disk, MEMBER_FILE)))
    except ValidationError as error:
        raise CorruptDataError(f"{MEMBER_FILE} cannot be read: {error.error_count()} faults") from None


def write_record(disk: Disk, record: MemberRecord) -> None:
    """Replace what is kept; returns when it is durable.

    Raises:
        DiskFull, StorageError: as `write_state`.
    """
    write_state(disk, MEMBER_FILE, _RECORD.dump_python(record, mode="json"))
