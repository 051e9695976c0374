"""The replicated catalogue as a node uses it: any member takes commands and tells what became of them.

A command is named, sent to whoever leads, and sent again under the same name until it is seen in the log,
which this member applies like every other: there is no answer that could be lost. The leader may die, or the
command arrive twice; it is applied once.
"""

import asyncio
import secrets
from collections.abc import Mapping
from typing import Any, Final

from envelope.errors import DeadlinePassed, RequestError
from envelope.types import NodeId
from metadata.catalog.catalog import Catalog
from metadata.catalog.commands import Command, encode_command
from metadata.limits import ENTRY_BYTES_MAX
from metadata.node.group_member import GroupMember
from metadata.node.peers import Address, PeerIdentity
from metadata.node.replicated_catalog import Applied, ReplicatedCatalog
from metadata.node.storage import Storage
from metadata.raft.proposals import PROPOSAL_ID_BYTES, ProposalId, encode_proposal
from metadata.raft.settings import RaftSettings

_RETRY_SECONDS: Final = 0.25
"""After so long without an outcome a command is sent again, a new leader or not: it may be lost."""

DEADLINE_SECONDS: Final = 10.0


class MetadataGroup:
    """See the module; made on the event loop it runs on.

    Attributes:
        member: this node's part of the group; its ``run`` does the work.
    """

    def __init__(
        self,
        identity: PeerIdentity,
        voters: Mapping[NodeId, Address],
        storage: Storage,
        settings: RaftSettings,
    ) -> None:
        """Go on with what the storage holds, and own it.

        Raises:
            CorruptDataError: its snapshot is damaged.
        """
        self._state = ReplicatedCatalog(storage.load().snapshot)
        self.member = GroupMember(identity, voters, storage, self._state, settings)

    @property
    def catalog(self) -> Catalog:
        """The catalogue as far as this member has applied it; to be read, never applied to."""
        return self._state.catalog

    async def led(self) -> NodeId:
        """Return who leads, once this member knows."""
        while (leader := self.member.voter.leader) is None:
            await self._state.next_leader()
        return leader

    async def propose(self, command: Command, deadline_seconds: float = DEADLINE_SECONDS) -> Applied:
        """Have a command applied, once; return what the catalogue said when it is applied here.

        That it is durable on a majority comes before that. Cancelled or late, it may be applied all the same.

        Raises:
            RequestError: the command is too large.
            DeadlinePassed: there was no leader, or no majority; it may be applied or not.
        """
        data = encode_command(command)
        if len(data) + PROPOSAL_ID_BYTES > ENTRY_BYTES_MAX:
            raise RequestError(f"a command of {len(data)} bytes exceeds {ENTRY_BYTES_MAX}")
        proposal_id = ProposalId(secrets.token_bytes(PROPOSAL_ID_BYTES))
        payloads = (encode_proposal(proposal_id, data),)
        outcome = self._state.outcome(proposal_id)
        try:
            async with asyncio.timeout(deadline_seconds):
                while not outcome.done():
                    self.member.forward(payloads)
                    waits: set[asyncio.Future[Any]] = {outcome, self._state.next_leader()}
                    await asyncio.wait(waits, timeout=_RETRY_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            outcome.cancel()
            raise DeadlinePassed(
                f"no answer of the metadata log within {deadline_seconds} s: no leader, or no majority"
            ) from None
        return outcome.result()

    async def read(self) -> Catalog:
        """Return the catalogue with everything that was committed before this call; ask the leader.

        Raises:
            NotLeader: this member does not lead.
        """
        await self._state.reached(await self.member.voter.read())
        return self.catalog
