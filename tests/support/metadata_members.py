"""Members of a metadata group in one process, with real files and real connections, stopped and started."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from envelope.errors import NotLeader
from envelope.types import LogIndex, NodeId, Term
from jetstream.log.disk.os_disk import OsDisk
from metadata.node.members.changing_member import AsVoter, ChangingMember
from metadata.node.members.parts import MemberParts
from metadata.node.members.voting_member import VotingMember
from metadata.node.peers.addresses import PeerAddresses
from metadata.node.peers.dialling import Address, PeerIdentity
from metadata.node.peers.listening import PeerServer
from metadata.node.storage.file_storage import FileStorage
from metadata.node.storage.port import Storage
from metadata.node.voter.voter import CommittedMembers, StateMachine, Voter
from metadata.raft.proposals import AppliedProposals, ProposalId, decode_proposal, encode_proposal
from metadata.raft.settings import RaftSettings
from metadata.raft.state import BEGINNING, Entry, Position, Snapshot

WAIT_SECONDS: Final = 20.0
MS: Final = 1_000_000
FAST: Final = RaftSettings(election_timeout_ns=300 * MS, heartbeat_interval_ns=50 * MS)


class Words:
    """A state machine that keeps every applied command, in order."""

    def __init__(self, snapshot: Snapshot, moved: Callable[[], None]) -> None:
        self.words: list[bytes] = []
        self.position = BEGINNING
        self.members = CommittedMembers(LogIndex(0), None)
        self.restored = 0
        self._proposals = AppliedProposals()
        self._moved = moved
        if snapshot.index:
            self.restore(snapshot)

    @property
    def index(self) -> LogIndex:
        return self.position.index

    def can_apply(self, payload: bytes) -> bool:
        return len(payload) > 16

    def apply(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            assert entry.index == self.index + 1
            self.position = Position(entry.index, entry.term)
            if entry.payload:
                proposal_id, word = decode_proposal(entry.payload)
                if self._proposals.is_new(proposal_id):
                    self._proposals.add(proposal_id, entry.index)
                    self.words.append(word)
        self._moved()

    def restore(self, snapshot: Snapshot) -> None:
        length = int.from_bytes(snapshot.payload[:4], "little")
        self._proposals = AppliedProposals.decode(snapshot.payload[4 : 4 + length])
        self.words = snapshot.payload[4 + length :].split(b"\n")[:-1]
        self.position = Position(snapshot.index, snapshot.term)
        self.restored += 1
        self._moved()

    def has(self, word: bytes) -> bool:
        """Tell whether `named` ``word`` was applied."""
        return not self._proposals.is_new(decode_proposal(named(word))[0])

    def snapshot(self) -> bytes:
        proposals = self._proposals.encode()
        words = b"".join(word + b"\n" for word in self.words)
        return len(proposals).to_bytes(4, "little") + proposals + words

    def leader_changed(self, leader: NodeId | None, term: Term) -> None:
        self._moved()


def named(word: bytes) -> bytes:
    """A proposal of ``word``, of at most 16 bytes, with an id that is the word's."""
    assert len(word) <= 16
    return encode_proposal(ProposalId(word.ljust(16, b"\0")), word)


def listening(address: Address) -> socket.socket:
    """A socket bound on the loopback."""
    found = socket.socket()
    with contextlib.ExitStack() as unless_bound:
        unless_bound.enter_context(found)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((address.host, address.port))
        unless_bound.pop_all()
    return found


def founder(
    name: NodeId,
    voters: dict[NodeId, Address],
    storage: Storage,
    machine: StateMachine,
    snapshot_log_bytes_min: int,
) -> ChangingMember:
    """One of the voters with which a group begins."""
    identity = PeerIdentity("test", name)
    parts = MemberParts(
        identity=identity,
        disk_name=name,
        server=PeerServer(identity),
        addresses=PeerAddresses(voters),
        machine=machine,
        settings=FAST,
        open_storage=lambda _: storage,
        snapshot_log_bytes_min=snapshot_log_bytes_min,
    )
    return ChangingMember(parts, AsVoter(name, frozenset(voters)), storage)


class Member:
    """One member: its files and its address stay when it is stopped."""

    def __init__(self, name: str, root: Path, moved: Callable[[], None]) -> None:
        self.node_id = NodeId(name)
        self.root = root / name
        self._moved = moved
        self._socket: socket.socket | None = listening(Address("127.0.0.1", 0))
        self.address = Address(*self._socket.getsockname())
        self.words = Words(Snapshot(LogIndex(0), Term(0), b""), moved)
        self.task: asyncio.Task[None] | None = None
        self._running: ChangingMember | None = None

    @property
    def runs(self) -> bool:
        return self._running is not None

    @property
    def member(self) -> VotingMember:
        assert self._running is not None, f"{self.node_id} does not run"
        assert isinstance(self._running.part, VotingMember), f"{self.node_id} has no vote"
        return self._running.part

    @property
    def voter(self) -> Voter:
        return self.member.voter

    def start(
        self,
        voters: dict[NodeId, Address],
        wrapped: Callable[[Storage], Storage] = lambda storage: storage,
        snapshot_log_bytes_min: int = 1 << 30,
    ) -> None:
        storage = FileStorage.open(OsDisk(self.root), "metadata")
        self.words = Words(storage.load().snapshot, self._moved)
        self._running = founder(self.node_id, voters, wrapped(storage), self.words, snapshot_log_bytes_min)
        found, self._socket = self._socket or listening(self.address), None
        self.task = asyncio.create_task(self._running.run(found))

    async def stop(self) -> None:
        """Stop as a process that ends: every connection is closed, and nothing listens any more."""
        if self._socket is not None:
            self._socket.close()
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task])
        self.task = self._running = self._socket = None


class Members:
    """A group of members."""

    def __init__(self, names: str, root: Path, snapshot_log_bytes_min: int) -> None:
        self._moved = asyncio.Event()
        self._snapshot_log_bytes_min = snapshot_log_bytes_min
        self.all = [Member(name, root, self._moved.set) for name in names]
        self.voters = {member.node_id: member.address for member in self.all}

    @property
    def running(self) -> list[Member]:
        return [member for member in self.all if member.runs]

    def start(self, member: Member, wrapped: Callable[[Storage], Storage] = lambda storage: storage) -> None:
        member.start(self.voters, wrapped, self._snapshot_log_bytes_min)

    @property
    def leader(self) -> Member | None:
        """The member that a majority follows, itself among them."""
        for member in self.running:
            state = (member.node_id, member.voter.term)
            agree = [other for other in self.running if (other.voter.leader, other.voter.term) == state]
            if member in agree and len(agree) > len(self.all) // 2:
                return member
        return None

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until ``condition`` holds; looked at whenever something is applied or a leader changes."""
        async with asyncio.timeout(WAIT_SECONDS):
            while not condition():
                self._moved.clear()
                await self._moved.wait()

    async def until_led(self, other_than: Member | None = None) -> Member:
        """Wait for a leader and return it."""
        await self.until(lambda: self.leader not in (None, other_than))
        assert self.leader is not None
        return self.leader

    async def add(self, *words: bytes) -> None:
        """Propose words to whoever leads, again where that changes, until all that run have applied them."""
        for word in words:
            while any(word not in member.words.words for member in self.running):
                leader = await self.until_led()
                with contextlib.suppress(NotLeader):
                    leader.voter.propose((named(word),))
                await self.until(partial(self._is_over, word, leader))

    def _is_over(self, word: bytes, leader: Member) -> bool:
        """Tell whether all have a word, or another must be asked for it."""
        return self.leader is not leader or all(word in member.words.words for member in self.running)


@contextlib.asynccontextmanager
async def members(names: str, root: Path, snapshot_log_bytes_min: int = 1 << 30) -> AsyncIterator[Members]:
    """A running group, stopped at the end."""
    group = Members(names, root, snapshot_log_bytes_min)
    try:
        for member in group.all:
            group.start(member)
        yield group
    finally:
        for member in group.all:
            await member.stop()
