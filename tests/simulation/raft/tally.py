"""The replicated state machine of the simulation: counts commands, and keeps a checksum of all of them."""

import struct
from typing import Final
from zlib import crc32

from envelope.types import LogIndex, NodeId, Term
from metadata.raft.proposals import (
    PROPOSAL_ID_BYTES,
    AppliedProposals,
    ProposalId,
    decode_proposal,
    encode_proposal,
)
from metadata.raft.state import Entry, Snapshot

_STATE: Final = struct.Struct("<QI")


def proposal(name: str) -> bytes:
    """Return the payload of the command ``name``, at most 16 letters, which is its id too."""
    command = name.encode()
    return encode_proposal(ProposalId(command.rjust(PROPOSAL_ID_BYTES)), command)


class Tally:
    """Applies each proposal once, as `metadata.raft.proposals` says how."""

    __slots__ = ("_checksum", "_proposals", "count", "index")

    def __init__(self) -> None:
        self.index = LogIndex(0)
        self.count = 0
        self._checksum = 0
        self._proposals = AppliedProposals()

    def restore(self, snapshot: Snapshot) -> None:
        """Become the state machine after the snapshot's last entry."""
        if snapshot.index:
            self.index = snapshot.index
            self.count, self._checksum = _STATE.unpack_from(snapshot.payload)
            self._proposals = AppliedProposals.decode(snapshot.payload[_STATE.size :])

    def leader_changed(self, leader: NodeId | None, term: Term) -> None:
        """Take no notice."""

    def encode(self) -> bytes:
        """Return the payload of the snapshot that `restore` takes."""
        return _STATE.pack(self.count, self._checksum) + self._proposals.encode()

    @property
    def state(self) -> tuple[int, int]:
        """What two equal ones have in common."""
        return self.count, self._checksum

    def apply(self, entry: Entry) -> bytes | None:
        """Apply the next entry; return its command if it had an effect."""
        self.index = entry.index
        if entry.is_for_the_voters:
            return None
        proposal_id, command = decode_proposal(entry.payload)
        if not self._proposals.is_new(proposal_id):
            return None
        self._proposals.add(proposal_id, entry.index)
        self.count += 1
        self._checksum = crc32(command, self._checksum)
        return command
