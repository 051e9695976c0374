"""Names of the members of the metadata group: a node together with the disk that has its vote.

    <node id>              a founder of a group that began by settings: its disk is not known
    <node id>@<directory>  every other member; the directory is the one that the node has registered

A node that comes back without its disk has forgotten its votes, so it is another member: under the same name
it could vote twice in a term. No node id has an ``@``.

Source: KIP-853 (a voter is an id and a directory id).
"""

from typing import Final

from envelope.types import NodeId

_SEPARATOR: Final = "@"


def member_name(node_id: NodeId, directory: str) -> NodeId:
    """Return the name of the member that a node is while it runs on that directory."""
    assert _SEPARATOR not in node_id, f"{node_id!r} is no node id"
    assert directory, f"{node_id} has no directory"
    return NodeId(f"{node_id}{_SEPARATOR}{directory}")


def node_of(member: NodeId) -> NodeId:
    """Return the id of a member's node."""
    return NodeId(member.partition(_SEPARATOR)[0])


def disk_of(member: NodeId) -> str | None:
    """Return the directory of a member; None: it is a founder, and its disk is not known."""
    return member.partition(_SEPARATOR)[2] or None
