"""The committed progress of a member, and its next commit.

A cursor only goes forward by itself. Where an application goes back, it says so first, and its next commit is
allowed to. One commit is under way at a time: what has not been answered is sent again unchanged, and a later
one could overtake it otherwise, which the coordinator would take as a reason to leave the earlier one out.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from consumer_groups.assignment.partitions import Claim
from consumer_groups.cursors import CursorPosition
from envelope.errors import Fenced, JetstreamError
from envelope.limits import FRAME_HEADER_BYTES_MAX

_COMMIT_BYTES_MAX: Final = FRAME_HEADER_BYTES_MAX - 4096
_CURSOR_BYTES: Final = 160
"""Of one cursor in a request, without its names and texts."""
_ESCAPED: Final = 6
"""What one byte of a text may take in JSON."""


@dataclass(frozen=True, slots=True)
class CursorCommit:
    """Cursors that are stored together or not at all."""

    places: tuple[tuple[Claim, CursorPosition], ...]
    goes_back: bool
    """Whether any of them is below the one before."""


class CommitFailureEffect(Enum):
    """The effect of a commit's failure."""

    SEND_AGAIN = auto()
    """The same, a little later; it may have been stored."""
    DROP = auto()
    """It is not this member's to commit; if it owns some of it, that can be committed anew."""
    RAISE = auto()
    """It can never be stored."""


def failure_effect(error: JetstreamError) -> CommitFailureEffect:
    """Return what follows from a commit's failure."""
    if error.retriable:
        return CommitFailureEffect.SEND_AGAIN
    return CommitFailureEffect.DROP if isinstance(error, Fenced) else CommitFailureEffect.RAISE


class MemberCommits:
    """The cursors of what a member reads, as far as it knows them.

    Invariants:
        M4: what is due for a claim is above its cursor, in the same life of the stream, unless it was said
            that it goes back.
    """

    def __init__(self) -> None:
        """Know nothing yet."""
        self._stored: dict[Claim, CursorPosition | None] = {}
        self._may_go_back: set[Claim] = set()

    def begin(self, claim: Claim, stored: CursorPosition | None) -> None:
        """Take in where the group's cursor is, for a claim that is new; None: there is none."""
        self._stored[claim] = stored

    def forget(self, claims: Iterable[Claim]) -> None:
        """Commit nothing for these from now on."""
        for claim in claims:
            self._stored.pop(claim, None)
            self._may_go_back.discard(claim)

    def go_back(self, claim: Claim) -> None:
        """Let the next commit of a claim be below the one before."""
        self._may_go_back.add(claim)

    def stored(self, claim: Claim) -> CursorPosition | None:
        """Return a claim's cursor; None if it has none."""
        return self._stored.get(claim)

    def due(self, reached: Mapping[Claim, CursorPosition]) -> tuple[CursorCommit, ...]:
        """Return what is to be stored so that the cursors are where the member is, one after the other."""
        forward: list[tuple[Claim, CursorPosition]] = []
        back: list[tuple[Claim, CursorPosition]] = []
        for claim, place in reached.items():
            if claim not in self._stored:
                continue
            stored = self._stored[claim]
            if stored is None or _is_elsewhere(stored, place) or place.offset > stored.offset:
                forward.append((claim, place))
            elif place.offset < stored.offset and claim in self._may_go_back:
                back.append((claim, place))
        return (*_split(forward, goes_back=False), *_split(back, goes_back=True))

    def has_stored(self, commit: CursorCommit) -> None:
        """Take in that a commit is durable."""
        for claim, place in commit.places:
            if claim in self._stored:
                stored = self._stored[claim]
                is_forward = stored is None or _is_elsewhere(stored, place) or place.offset >= stored.offset
                assert is_forward or commit.goes_back, f"M4: {claim} goes back from {stored} to {place}"
                self._stored[claim] = place
                self._may_go_back.discard(claim)


def _is_elsewhere(stored: CursorPosition, place: CursorPosition) -> bool:
    """Return whether the cursor is of another life of the stream; who does not know says nothing."""
    return None not in (stored.incarnation, place.incarnation) and stored.incarnation != place.incarnation


def _split(places: list[tuple[Claim, CursorPosition]], *, goes_back: bool) -> Iterable[CursorCommit]:
    """Yield commits that fit a request each."""
    piece: list[tuple[Claim, CursorPosition]] = []
    size = 0
    for claim, place in places:
        weight = _weight(claim, place)
        if size + weight > _COMMIT_BYTES_MAX:
            yield CursorCommit(tuple(piece), goes_back)
            piece, size = [], 0
        piece.append((claim, place))
        size += weight
    if piece:
        yield CursorCommit(tuple(piece), goes_back)


def _weight(claim: Claim, place: CursorPosition) -> int:
    names = claim.partition.stream + (place.incarnation or "")
    return _CURSOR_BYTES + len(names) + _ESCAPED * len((place.metadata or "").encode())
