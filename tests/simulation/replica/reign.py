"""One reign of one process over one stream: takes messages in, appends groups, serves followers, acks."""

from collections import deque
from typing import TYPE_CHECKING

from envelope.errors import CorruptDataError
from envelope.types import LeaderEpoch, NodeId, Offset
from jetstream.replica.leader import Leader
from jetstream.replica.leader_events import (
    Action,
    AnswerFollower,
    Appointment,
    Event,
    LeaderLogSynced,
    ProposeIsr,
    ServeFollower,
)
from jetstream.replica.role_events import AdvanceHighWatermark
from jetstream.replica.wire import (
    Answer,
    BatchesMessage,
    DivergingMessage,
    FetchRefusal,
    RefusedMessage,
)
from metadata.catalog.commands import ChangeIsr
from tests.simulation.replica.checkers.damages import check_served
from tests.simulation.replica.checkers.read_replicas import check_proposal
from tests.simulation.replica.checkers.reigns import check_speech
from tests.simulation.replica.description import event_text
from tests.simulation.replica.log_ids import AllIds, KnownIds
from tests.simulation.replica.log_image import Batch
from tests.simulation.replica.messages import Ack, Publish, Refusal, ToReplica
from tests.simulation.replica.reading import readable
from tests.simulation.replica.writer import Done, Filled, Full, Report
from tests.simulation.violation import Violation
from tests.support.checked_leader import CheckedLeader

if TYPE_CHECKING:
    from tests.simulation.replica.replica import Replica


class Reign:
    """The shell around one `Leader`."""

    def __init__(self, replica: "Replica", appointment: Appointment) -> None:
        self._replica, self._life, self._world = replica, replica.life, replica.life.world
        self._process = (replica.life.name, replica.life.number)
        self._image = image = replica.image
        self._publishing = self._world.checks.publishing[image.stream]
        self._mailbox: deque[Publish] = deque()
        self._waiting: dict[Offset, list[Publish]] = {}
        self._leader = CheckedLeader(
            appointment=appointment,
            log=image.state(),
            high_watermark=replica.watermark.offset,
            now=replica.life.now(),
            lease=replica.life.lease,
            settings=self._world.swarm.settings,
        )
        self._ids: KnownIds = AllIds(image)
        if replica.ids is not None:
            replica.ids.lead(appointment.leader_epoch, self._leader.high_watermark)
            self._ids = replica.ids
        self._world.checks.reign_begun(self._process, appointment.leader_epoch, image)
        self._world.bus.subscribe(replica.life.name, image.stream)

    @property
    def leader(self) -> Leader:
        """The machine."""
        return self._leader

    def tell(self, event: Event) -> None:
        """Give the machine an event, and perform what it wants."""
        self._world.steps += 1
        now = self._life.now()
        actions = self._leader.handle(event, now)
        if self._world.trace.on:
            self._replica.note(f"{event_text(event)} | {self._leader}")
        holds_leadership = self._life.lease.is_valid(now) and not self._leader.deposed
        check_speech(self._replica.title, actions, holds_leadership=holds_leadership)
        for action in actions:
            self._perform(action)

    def end(self) -> None:
        """The reign is over: what waits gets no answer."""
        self._mailbox.clear()
        self._waiting.clear()
        self._world.bus.unsubscribe(self._life.name, self._image.stream)

    # --- publishing -----------------------------------------------------------------------------------

    def publish(self, message: Publish) -> None:
        """Take a message in."""
        self._publishing.received(message, self._process)
        offset = self._ids.find(message.value)
        if offset is not None:
            self._world.trace.counts["duplicate"] += 1
            self._acknowledge(message, offset)
        elif len(self._leader.isr.maximal) < self._life.row_of(self._image.stream).config.insync_minimum:
            if self._leader.holds_leadership(self._life.now()):
                self._world.trace.counts["refused"] += 1
                self._publishing.refused(message, self._process)
                self._world.bus.answer(self._life.name, Refusal(message), message.publisher)
        else:
            self._mailbox.append(message)
            self._append_group()

    def _acknowledge(self, message: Publish, offset: Offset) -> None:
        is_committed = offset < self._leader.high_watermark
        if not is_committed or not self._leader.holds_leadership(self._life.now()):
            self._waiting.setdefault(offset, []).append(message)
            return
        self._ack(message, offset)

    def _ack(self, message: Publish, offset: Offset) -> None:
        self._world.trace.counts["acked"] += 1
        self._publishing.answered(message, offset, self._leader.leader_epoch)
        if self._world.trace.on:
            self._replica.note(f"acks {message.value} at {offset}")
        self._world.bus.answer(self._life.name, Ack(message, offset), message.publisher)

    def _append_group(self) -> None:
        if not self._replica.writer.idle or not self._mailbox:
            return
        values: list[str] = []
        end = self._image.log_end
        while self._mailbox and len(values) < self._world.swarm.group_records_max:
            message = self._mailbox.popleft()
            offset = self._ids.find(message.value)
            if offset is None:
                offset = Offset(end + len(values))
                self._store(message.value, offset)
                values.append(message.value)
            self._acknowledge(message, offset)
        if values:
            batch, ids = self._ids.group(end, self._leader.leader_epoch, tuple(values))
            self._replica.writer.append((batch,), ids)

    def _store(self, value: str, offset: Offset) -> None:
        self._ids.store(value, offset)
        world, stream, directory = self._world, self._image.stream, self._life.node.directory
        if stream in world.checks.ids:
            place = (self._leader.leader_epoch, offset)
            if world.checks.ids[stream].stored(value, place, world.wall_clock.wall(), directory, self._image):
                world.trace.counts["stored_again"] += 1
                world.checks.truths[stream].newest.forgotten.add(value)

    def reported(self, report: Report) -> None:
        """The disk tells that a job is done."""
        match report:
            case Filled():
                pass
            case Done(_, log):
                self.tell(LeaderLogSynced(log.synced_end, log.log_end_offset))
            case Full():
                # Nothing was stored, and those who wait are not told: they retry.
                self._ids.take_back()
                self._waiting.clear()
        self._append_group()

    # --- what the machine wants -----------------------------------------------------------------------

    def _perform(self, action: Action) -> None:
        match action:
            case AdvanceHighWatermark(high_watermark):
                self._advance(high_watermark)
            case ProposeIsr():
                self._propose(action)
            case ServeFollower():
                self._serve(action)
            case AnswerFollower(follower, answer):
                self._world.trace.counts[_kind(answer)] += 1
                self._answer(follower, answer)

    def _advance(self, high_watermark: Offset) -> None:
        self._replica.watermark.is_at(high_watermark)
        self._ids.committed(high_watermark)
        checks, name = self._world.checks, self._replica.life.name
        apart = self._life.row_of(self._image.stream).read_replicas
        checks.announced(name, self._image, high_watermark, self._leader.leader_epoch, apart)
        checks.committed(self._image.stream, high_watermark, self._world.wall_clock.wall())
        for offset in [offset for offset in self._waiting if offset < high_watermark]:
            for message in self._waiting.pop(offset):
                self._ack(message, offset)

    def _propose(self, proposal: ProposeIsr) -> None:
        row = self._life.row_of(self._image.stream)
        check_proposal(row, proposal.isr)
        command = ChangeIsr(
            stream=row.name,
            incarnation=row.incarnation,
            leader=self._life.name,
            leader_epoch=proposal.leader_epoch,
            expected_isr_version=proposal.expected_isr_version,
            isr=proposal.isr,
        )
        self._life.link.propose(proposal, command)

    def _serve(self, serve: ServeFollower) -> None:
        if not self._image.is_boundary(serve.log_end):
            raise Violation(
                f"{self._replica.title} serves {serve.follower} from {serve.log_end}: inside a batch"
            )
        try:
            there = readable(self._image, serve.log_end, self._world.swarm.served_batches_max)
        except CorruptDataError:
            self._world.trace.counts["fetch_cannot_read"] += 1
            self._answer(serve.follower, RefusedMessage(self._leader.leader_epoch, FetchRefusal.CANNOT_READ))
            return
        batches = tuple(batch for batch in there if batch.next <= serve.limit)
        begins: list[tuple[LeaderEpoch, Offset]] = []
        for batch in batches:
            if not begins or begins[-1][0] != batch.epoch:
                begins.append((batch.epoch, batch.base))
        end = batches[-1].next if batches else serve.log_end
        check_served(self._replica.title, self._image, serve.log_end, end)
        answer = BatchesMessage(
            leader_epoch=self._leader.leader_epoch,
            last_epoch=serve.last_epoch,
            base=serve.log_end,
            next=end,
            high_watermark=serve.high_watermark,
            epochs=tuple(begins),
        )
        self._answer(serve.follower, answer, batches)

    def _answer(self, follower: NodeId, answer: Answer, batches: tuple[Batch, ...] = ()) -> None:
        message = ToReplica(self._life.name, self._image.stream, answer, batches)
        self._world.network.send((self._life.name, follower), message)


def _kind(answer: Answer) -> str:
    """Return what such answers are counted as."""
    if isinstance(answer, RefusedMessage):
        return f"fetch_{answer.reason.value}"
    return "diverging" if isinstance(answer, DivergingMessage) else "start_over"
