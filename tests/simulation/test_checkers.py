"""No checker is mute: each law, broken by hand, is a violation."""

from collections.abc import Callable

import pytest

from envelope.types import LogIndex, MonotonicNs, NodeId, Term
from metadata.raft.configuration import Configuration, encode_configuration
from metadata.raft.events import MessageReceived, MetadataLeaderChanged, Persist, ReadReady, Send, Tick
from metadata.raft.messages.voter_messages import (
    AppendRejection,
    AppendResponse,
    Heartbeat,
    Message,
    PreVoteResponse,
    VoteRequest,
    VoteResponse,
    VoterHeartbeatResponse,
)
from metadata.raft.state import Entry, HardState, Snapshot
from tests.simulation.raft.checkers.answers import check_answers
from tests.simulation.raft.checkers.applied import Applied
from tests.simulation.raft.checkers.commits import Commits
from tests.simulation.raft.checkers.disks import check_write
from tests.simulation.raft.checkers.elections import Elections
from tests.simulation.raft.checkers.log_matching import LogMatching
from tests.simulation.raft.checkers.members import Members, are_majority
from tests.simulation.raft.checkers.promises import Promises
from tests.simulation.raft.checkers.reads import History, Reads
from tests.simulation.raft.checkers.stability import Stability
from tests.simulation.raft.disk import LogImage
from tests.simulation.raft.tally import Tally, proposal
from tests.simulation.violation import Violation

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
TIMEOUT = 1_000
ALL = (frozenset((A, B, C)),)


def _entry(index: int, term: int, payload: bytes = b"") -> Entry:
    return Entry(LogIndex(index), Term(term), payload)


def _log(*terms: int, term: int | None = None, vote: NodeId | None = None) -> LogImage:
    entries = [_entry(index, of_term) for index, of_term in enumerate(terms, 1)]
    return LogImage(
        HardState(Term(term if term is not None else max(terms, default=0)), vote), entries=entries
    )


def _joint(index: int) -> Entry:
    """C alone, in place of all."""
    return _entry(index, 1, encode_configuration(Configuration((C,), outgoing=(A, B, C))))


def _final(index: int) -> Entry:
    return _entry(index, 1, encode_configuration(Configuration((C,))))


def _writes(*entries: Entry, term: int | None = None, vote: NodeId | None = None) -> Persist:
    return Persist(1, None if term is None else HardState(Term(term), vote), entries=entries)


def _match(index: int, term: int = 1) -> AppendResponse:
    return AppendResponse(B, A, Term(term), LogIndex(index))


def _vote(term: int = 1) -> VoteResponse:
    return VoteResponse(B, A, Term(term), granted=True)


def _request(term: int, last_index: int, last_term: int) -> VoteRequest:
    return VoteRequest(A, B, Term(term), LogIndex(last_index), Term(last_term), transferred=False)


def _commits(*disks: LogImage) -> Commits:
    return Commits(dict(zip((A, B, C), disks, strict=True)), Members(frozenset((A, B, C))))


def _committed(*disks: LogImage) -> Commits:
    commits = _commits(*disks)
    commits.announced(disks[0], 1, Term(1), leads=True, sides=ALL)
    return commits


def _applied(*entries: Entry) -> tuple[Applied, Tally]:
    tally = Tally()
    applied = Applied(tally.state)
    applied.started(A, tally)
    for entry in entries:
        applied.applied(A, entry, tally, tally.apply(entry))
    return applied, tally


def _led() -> Elections:
    elections = Elections()
    elections.led(Term(1), A)
    return elections


def _matched() -> LogMatching:
    matching = LogMatching()
    matching.asked(_log(1), _writes(_entry(2, 2, b"x")))
    return matching


def _promises(disk: LogImage) -> Promises:
    promises = Promises({B: disk})
    promises.wrote(B)
    return promises


def _leaves_a_gap() -> None:
    _log(1).write(_writes(_entry(3, 1)))


def _forgets_acknowledged() -> None:
    disk = _log(1, 1)
    promises = _promises(disk)
    promises.sent(_match(2), None)
    disk.entries.pop()
    promises.wrote(B)


def _applies_anew(name: str, entry: Entry) -> None:
    applied, _ = _applied(_entry(1, 1, proposal("x")))
    tally = Tally()
    applied.started(NodeId(name), tally)
    applied.applied(NodeId(name), entry, tally, tally.apply(entry))


def _repeats_a_command() -> None:
    applied, tally = _applied(_entry(1, 1, proposal("x")))
    applied.applied(A, _entry(2, 1, proposal("x")), tally, b"x")


def _goes_back() -> None:
    applied, tally = _applied(_entry(1, 1, proposal("x")))
    applied.restored(A, tally)


def _reads_too_early() -> None:
    reads = Reads()
    reads.asked(1, commit=5)
    reads.ready(1, 4)


def _stability(leader: NodeId) -> Stability:
    stability = Stability(B, (A, B, C), TIMEOUT)
    stability.handled(Tick(), (MetadataLeaderChanged(leader, Term(1)),), 0, ALL)
    return stability


def _helps_to_depose(answer: Message) -> None:
    stability = _stability(A)
    stability.handled(MessageReceived(Heartbeat(A, B, Term(1), LogIndex(0), 1)), (), 0, ALL)
    request = MessageReceived(VoteRequest(C, B, Term(2), LogIndex(0), Term(0), transferred=False))
    stability.handled(request, (Persist(1, then=(Send(answer),)),), TIMEOUT - 1, ALL)


def _stale(message: Message) -> None:
    check_answers(MessageReceived(message), (MetadataLeaderChanged(B, Term(2)),), _log(1), Term(2))


_BROKEN: dict[str, Callable[[], None]] = {
    "two leaders in a term": lambda: _led().led(Term(1), B),
    "a leader's word in another's term": lambda: _led().sent(Heartbeat(B, A, Term(1), LogIndex(0), 1)),
    "another payload at an index and term": lambda: _matched().asked(_log(1), _writes(_entry(2, 2, b"y"))),
    "another entry before": lambda: _matched().asked(_log(2), _writes(_entry(2, 2, b"x"))),
    "a gap in the log": _leaves_a_gap,
    "commit on a minority": lambda: _commits(_log(1), _log(), _log()).announced(
        _log(1), 1, Term(1), leads=True, sides=ALL
    ),
    "commit on a majority of one side": lambda: _commits(_log(1), _log(1), _log()).announced(
        _log(1), 1, Term(1), leads=True, sides=(frozenset((A, B)), frozenset((C,)))
    ),
    "commit beyond the log": lambda: _commits(_log(1), _log(1), _log()).announced(
        _log(), 1, Term(1), leads=False, sides=ALL
    ),
    "commit of an earlier term by counting": lambda: _commits(_log(1), _log(1), _log()).announced(
        _log(1), 1, Term(2), leads=True, sides=ALL
    ),
    "another entry committed": lambda: _committed(_log(1), _log(1), _log()).announced(
        _log(2), 1, Term(2), leads=False, sides=ALL
    ),
    "a leader without a committed entry": lambda: _committed(_log(1), _log(1), _log()).elected(C, Term(2)),
    "a term that goes back": lambda: check_write(A, _log(term=2), _writes(term=1)),
    "a vote that changes": lambda: check_write(A, _log(term=2, vote=A), _writes(term=2, vote=B)),
    "a snapshot that goes back": lambda: check_write(
        A,
        LogImage(snapshot=Snapshot(LogIndex(2), Term(0), b"")),
        Persist(1, snapshot=Snapshot(LogIndex(1), Term(0), b"")),
    ),
    "a vote before its term is durable": lambda: _promises(_log(term=0)).sent(_vote(), None),
    "a vote before it is durable": lambda: _promises(_log(term=1)).sent(_vote(), None),
    "a candidacy before its own vote": lambda: _promises(_log(term=1)).sent(
        VoteRequest(B, A, Term(1), LogIndex(0), Term(0), transferred=False), None
    ),
    "entries acknowledged before durable": lambda: _promises(_log(1)).sent(_match(2), None),
    "acknowledged and not the leader's": lambda: _promises(_log(1, term=2)).sent(_match(1, 2), _log(2)),
    "acknowledged and cut": _forgets_acknowledged,
    "an entry left out": lambda: _applies_anew("b", _entry(2, 1)),
    "another entry applied": lambda: _applies_anew("b", _entry(1, 1, proposal("y"))),
    "a command with two effects": _repeats_a_command,
    "a state machine that goes back": _goes_back,
    "a read that misses a commit": _reads_too_early,
    "a read that nobody asked": lambda: Reads().refused(7),
    "a read older than an answer": lambda: History().end_read(3, 2),
    "a write older than an answer": lambda: History().end_write(3, 3),
    "a vote for an older log": lambda: check_answers(
        MessageReceived(_request(3, 2, 1)), (Persist(1, then=(Send(_vote(3)),)),), _log(1, 2), Term(2)
    ),
    "a late vote counted": lambda: _stale(_vote()),
    "a late rejection counted": lambda: _stale(
        AppendRejection(
            source=A,
            target=B,
            term=Term(1),
            previous_index=LogIndex(1),
            hint_index=LogIndex(0),
            hint_term=Term(0),
        )
    ),
    "a vote against a leader just heard": lambda: _helps_to_depose(VoteResponse(B, C, Term(2), granted=True)),
    "a pre-vote against it": lambda: _helps_to_depose(PreVoteResponse(B, C, Term(1), Term(1), granted=True)),
    "a candidacy without pre-votes": lambda: _stability(A).handled(
        Tick(), (Send(VoteRequest(B, A, Term(2), LogIndex(0), Term(0), transferred=False)),), TIMEOUT, ALL
    ),
    "a leader in silence": lambda: _stability(B).handled(Tick(), (), TIMEOUT + 1, ALL),
}


@pytest.mark.parametrize("law", _BROKEN)
def test_each_law_broken_by_hand_is_a_violation(law: str) -> None:
    with pytest.raises(Violation):
        _BROKEN[law]()


def test_a_committed_entry_that_leaves_a_majority_of_disks_is_a_violation() -> None:
    disks = _log(1), _log(1), _log()
    commits = _committed(*disks)
    commits.lost(C)
    disks[1].entries.clear()
    with pytest.raises(Violation, match="left on"):
        commits.lost(B)


def test_who_decides_is_read_from_the_log_and_from_what_is_committed_before_it() -> None:
    members = Members(ALL[0])
    before = LogImage(entries=[_entry(1, 1)])
    assert members.by(before) == ALL
    both = (frozenset((C,)), ALL[0])
    assert members.by(LogImage(entries=[_entry(1, 1), _joint(2)])) == both
    members.committed(_joint(2))
    assert members.certain == both[0]
    assert members.by(before) == ALL
    assert members.by(LogImage(snapshot=Snapshot(LogIndex(2), Term(1), b""))) == both
    assert members.by(LogImage(entries=[_entry(1, 1), _joint(2), _final(3)])) == both[:1]


def test_a_majority_is_more_than_half_of_each_side() -> None:
    assert are_majority({A, B}, ALL)
    assert not are_majority({A}, ALL)
    assert not are_majority({A, B}, (*ALL, frozenset((C,))))


def test_what_a_healthy_leader_does_is_no_violation() -> None:
    stability = _stability(B)
    answer = VoterHeartbeatResponse(A, B, Term(1), 1)
    stability.handled(MessageReceived(answer), (ReadReady((1,), LogIndex(0)),), MonotonicNs(TIMEOUT), ALL)
    stability.handled(Tick(), (), TIMEOUT + 1, ALL)
    check_answers(MessageReceived(answer), (ReadReady((1,), LogIndex(0)),), _log(1), Term(1))
