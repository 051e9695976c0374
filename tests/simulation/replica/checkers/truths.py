"""What is committed, where acked records may be lost: then another history begins, and is told by its epochs.

Where nothing may be lost there is one history for ever. Elsewhere it parts at a loss that is allowed: from
which epoch on is known at once, up to where the two are one when the first leader behind it begins.
"""

from dataclasses import dataclass

from envelope.types import LeaderEpoch, Offset
from tests.simulation.replica.checkers.committed import Committed
from tests.simulation.replica.log_image import LogImage
from tests.simulation.violation import Violation


@dataclass(frozen=True, slots=True)
class _Parting:
    """A loss that is allowed, and of which no leader has begun yet to make a history."""

    first_epoch: LeaderEpoch
    kept: Offset
    """What is committed below is not lost."""
    committed: Committed
    """What was committed then; a leader before the loss may begin another history behind it."""


class Truths:
    """The histories of one stream, in the order of their epochs."""

    def __init__(self, committed: Committed | None = None) -> None:
        self.known = [committed or Committed()]
        self._due: list[_Parting] = []

    @property
    def newest(self) -> Committed:
        """What is committed now."""
        return self.known[-1]

    @property
    def has_parted(self) -> bool:
        """Whether anything may ever have been lost."""
        return len(self.known) > 1 or self.is_parting

    @property
    def is_parting(self) -> bool:
        """Whether a loss was allowed, and the next leader has not begun."""
        return bool(self._due)

    def of(self, epoch: LeaderEpoch) -> Committed:
        """Return what is committed for who leads or follows in this reign."""
        return next(truth for truth in reversed(self.known) if truth.first_epoch <= epoch)

    def part(self, first_epoch: LeaderEpoch, kept: Offset) -> None:
        """Allow that the reigns from ``first_epoch`` on lack what is committed from ``kept`` on."""
        self._due.append(_Parting(first_epoch, kept, self.newest))

    def begun(self, epoch: LeaderEpoch, image: LogImage) -> None:
        """A leader begins with this log: if it is the first one behind a loss, that is what was kept."""
        due = [parting for parting in self._due if parting.first_epoch <= epoch]
        if not due:
            return
        there, kept = due[-1].committed.shared_with(image), due[-1].kept
        if there < kept:
            raise Violation(
                f"{image.stream} goes on in epoch {epoch} with {there} of what was committed; "
                f"{kept} was not lost"
            )
        shared = self.of(epoch).shared_with(image)
        self._due = [parting for parting in self._due if parting.first_epoch > epoch]
        # Who was left behind by a loss, and leads after another, still has what the first one took.
        back = max(self.known, key=lambda truth: truth.shared_with(image))
        self.known.append(back.succeeded(due[-1].first_epoch, shared, back.shared_with(image)))

    def is_lost(self, offset: Offset, since: LeaderEpoch, until: LeaderEpoch) -> bool:
        """Tell whether what was at ``offset`` in one reign may not be there in a later one."""
        first, last = self.of(since).first_epoch, self.of(until).first_epoch
        return any(first < truth.first_epoch <= last and truth.shared <= offset for truth in self.known)

    def was_committed(self, offset: Offset, value: str) -> bool:
        """Tell whether the value is, or was, what is committed at ``offset``."""
        return any(offset < truth.end and truth.records[offset][1] == value for truth in self.known)

    def check_cut(self, name: str, start: Offset, end: Offset, epoch: LeaderEpoch) -> None:
        """A follower in this reign removes records that it knew to be committed."""
        if not any(truth.shared < end and 0 < truth.first_epoch <= epoch for truth in self.known):
            raise Violation(f"{name}: committed records {start} to {end} are about to be removed")
