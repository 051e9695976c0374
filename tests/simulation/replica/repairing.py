"""The shell around one `RepairSearch`: a replica looks after its damage, and gives others what it has.

One part is asked of one peer at a time, as the product does it (`jetstream.node.maintenance.repair`).
"""

from typing import TYPE_CHECKING, Final

from envelope.errors import JetstreamError
from envelope.types import Offset
from jetstream.log.rewriting.repair import Hole
from jetstream.replica.repair_search import Attempt, RepairSearch, peers_of
from tests.simulation.replica.checkers.damages import check_served
from tests.simulation.replica.filling import holes_of
from tests.simulation.replica.log_image import Batch
from tests.simulation.replica.messages import RepairAnswer, RepairQuestion
from tests.simulation.replica.reading import readable
from tests.simulation.replica.swarm import LEASE
from tests.simulation.replica.writer import Fill, Filled

if TYPE_CHECKING:
    from tests.simulation.replica.replica import Replica

_PATIENCE: Final = LEASE // 2
"""For one answer; the product has more, and runs for longer."""


class Repairing:
    """Of one replica during one life of its node."""

    def __init__(self, replica: "Replica") -> None:
        self._replica, self._image, self._world = replica, replica.image, replica.life.world
        self._search = RepairSearch()
        self._attempt: Attempt | None = None
        self._hole: Hole | None = None
        self._offset = Offset(0)
        """Where what was not answered yet begins."""
        self._batches: list[Batch] = []
        self._asked_at = 0
        self._is_filling = False

    def receive(self, message: RepairQuestion | RepairAnswer) -> None:
        """Give what another replica lacks, or take what was asked for."""
        if isinstance(message, RepairQuestion):
            self._asked(message)
        else:
            self._answered(message)

    # --- asking -----------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Look after what is damaged, if nothing is under way for it."""
        damage = self._image.damage
        if damage.is_none:
            if not self._is_filling:  # a cut may take the damage while the disk fills it
                self._search, self._attempt = RepairSearch(), None
            return
        if self._world.healing:
            damage.look()
        if self._attempt is None:
            self._begin()
        elif not self._is_filling and self._replica.life.now() - self._asked_at > _PATIENCE:
            self._failed("silence")

    def _begin(self) -> None:
        """Make the next attempt that is due."""
        replica, row = self._replica, self._replica.row
        if row is None:
            return
        peers = peers_of(row, replica.life.name, lambda peer: True)
        for hole in holes_of(self._image):
            due = self._search.due(hole.base, hole.next, peers, replica.life.now())
            if due:
                # A cut while it is under way takes from the log what it looks for; filling finds that out.
                self._attempt, self._hole = due[0], hole
                self._offset, self._batches = max(hole.base, self._image.log_start), []
                self._ask(due[0])
                return

    def _ask(self, attempt: Attempt) -> None:
        replica = self._replica
        self._asked_at = replica.life.now()
        question = RepairQuestion(replica.life.name, self._image.stream, self._offset, attempt.next)
        self._world.network.send((replica.life.name, attempt.peer), question)

    def _failed(self, why: object) -> None:
        attempt, self._attempt, self._is_filling = self._attempt, None, False
        assert attempt is not None, "only what was tried fails"
        self._search.failed(attempt, self._replica.life.now())
        self._world.trace.counts["not_repaired"] += 1
        if self._world.trace.on:
            self._replica.note(f"not repaired: {attempt}: {why}")

    def _answered(self, answer: RepairAnswer) -> None:
        """Take in what a peer has; nothing, if nobody waits for it any more."""
        attempt, hole = self._attempt, self._hole
        if attempt is None or hole is None or self._is_filling or answer.source != attempt.peer:
            return
        if not answer.base <= self._offset < answer.next:
            self._failed(f"{answer.source} has nothing")
            return
        self._batches += answer.batches
        self._offset = answer.next
        if self._offset < attempt.next:
            self._ask(attempt)
            return
        self._is_filling = True
        self._replica.writer.fill(Fill(hole, tuple(self._batches)))

    def filled(self, report: Filled) -> None:
        """The disk has what was in a hole, or refuses it."""
        if report.error is not None:
            self._failed(report.error)
        else:
            self._world.trace.counts["repaired"] += 1
            if self._world.trace.on:
                self._replica.note(f"repaired {self._attempt}")
            self._attempt, self._is_filling = None, False
        self._begin()

    # --- giving -----------------------------------------------------------------------------------------

    def _asked(self, question: RepairQuestion) -> None:
        """Answer with what is here; with nothing where it is not to be had."""
        replica, image = self._replica, self._image
        batches = self._found(question.offset, question.end)
        base, end = (batches[0].base, batches[-1].next) if batches else (question.offset, question.offset)
        check_served(replica.title, image, base, end)
        answer = RepairAnswer(replica.life.name, image.stream, base, end, batches)
        self._world.network.send((replica.life.name, question.source), answer)

    def _found(self, offset: Offset, end: Offset) -> tuple[Batch, ...]:
        image = self._image
        if not image.log_start <= offset < image.log_end:
            return ()
        try:
            there = readable(image, offset, self._world.swarm.served_batches_max)
        except JetstreamError:
            return ()
        return tuple(batch for batch in there if batch.next <= end)
