"""A proposal that is retried is applied once.

A proposer may never get the outcome: the leader dies, or its answer is lost. So it names the
proposal, proposes the same again, and every voter applies the first of them in the log. Names are remembered
as part of the state machine: which ones depends on the log alone, and snapshots carry them.

A payload:

    offset size field
    0      16   proposal id
    16     -    command

The remembered ids, oldest first, all numbers little-endian:

    offset size field
    0      4    count, u32
    4      -    for each: proposal id, 16 bytes; index of its entry, u64

Source: Ongaro, "Consensus: Bridging Theory and Practice", section 6.3.
"""

import struct
from collections import OrderedDict
from typing import Final, NewType

from envelope.errors import CorruptDataError
from envelope.types import LogIndex

ProposalId = NewType("ProposalId", bytes)
"""16 bytes, unique for ever, drawn at random by the proposer."""

PROPOSAL_ID_BYTES: Final = 16

REMEMBERED_MAX: Final = 65_536
"""Proposals that are remembered; a retry that comes behind so many others is applied again.

Every voter must have the same: a change would have to go through the log.
"""

_COUNT: Final = struct.Struct("<I")
_APPLIED: Final = struct.Struct(f"<{PROPOSAL_ID_BYTES}sQ")


def encode_proposal(proposal_id: ProposalId, command: bytes) -> bytes:
    """Return the payload that proposes ``command`` under that name."""
    assert len(proposal_id) == PROPOSAL_ID_BYTES, f"a proposal id of {len(proposal_id)} bytes"
    return proposal_id + command


def decode_proposal(payload: bytes) -> tuple[ProposalId, bytes]:
    """Return a payload's name and command.

    Raises:
        CorruptDataError: it is too short to have a name.
    """
    if len(payload) < PROPOSAL_ID_BYTES:
        raise CorruptDataError(f"a proposal of {len(payload)} bytes has no id")
    return ProposalId(payload[:PROPOSAL_ID_BYTES]), payload[PROPOSAL_ID_BYTES:]


class AppliedProposals:
    """The last proposals that were applied, in log order.

    Invariant:
        R13: ids are remembered once, at most ``remembered_max``, and at indexes that increase.
    """

    def __init__(self, remembered_max: int = REMEMBERED_MAX) -> None:
        self._remembered_max = remembered_max
        self._index_of: OrderedDict[ProposalId, LogIndex] = OrderedDict()

    def __len__(self) -> int:
        return len(self._index_of)

    def is_new(self, proposal_id: ProposalId) -> bool:
        """Return whether a proposal is to be applied: nothing is remembered of it."""
        return proposal_id not in self._index_of

    def index_of(self, proposal_id: ProposalId) -> LogIndex | None:
        """Return the index of the entry that was applied, None if nothing is remembered."""
        return self._index_of.get(proposal_id)

    def add(self, proposal_id: ProposalId, index: LogIndex) -> None:
        """Remember a new proposal, applied at ``index``, behind all others; the oldest may be forgotten."""
        assert self.is_new(proposal_id), f"R13: {proposal_id.hex()} was applied already"
        assert not self._index_of or index > next(reversed(self._index_of.values())), f"R13: back to {index}"
        self._index_of[proposal_id] = index
        if len(self._index_of) > self._remembered_max:
            self._index_of.popitem(last=False)
        assert len(self._index_of) <= self._remembered_max, f"R13: {len(self._index_of)} are remembered"

    def encode(self) -> bytes:
        """Return the remembered proposals as bytes, equal ones for equal logs."""
        applied = [_APPLIED.pack(proposal_id, index) for proposal_id, index in self._index_of.items()]
        return b"".join((_COUNT.pack(len(applied)), *applied))

    @classmethod
    def decode(cls, data: bytes, remembered_max: int = REMEMBERED_MAX) -> "AppliedProposals":
        """Return what `encode` was called on.

        Raises:
            CorruptDataError: the bytes are not what it returned.
        """
        decoded = cls(remembered_max)
        count = _COUNT.unpack_from(data)[0] if len(data) >= _COUNT.size else -1
        if len(data) != _COUNT.size + count * _APPLIED.size or count > remembered_max:
            raise CorruptDataError(f"{len(data)} bytes are no {count} applied proposals")
        last = 0
        for raw_id, index in _APPLIED.iter_unpack(data[_COUNT.size :]):
            proposal_id = ProposalId(raw_id)
            if index <= last or not decoded.is_new(proposal_id):
                raise CorruptDataError(f"applied proposal {raw_id.hex()} at {index} after one at {last}")
            decoded.add(proposal_id, LogIndex(index))
            last = index
        return decoded
