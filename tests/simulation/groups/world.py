"""What the parts of one run share."""

from random import Random

from consumer_groups.coordinator.events import ConnectionId
from consumer_groups.coordinator.group_state import GroupState
from consumer_groups.shard.records import GroupCursorRecord, StoredGroup, StoredGroupCursor, read_group_record
from envelope.types import Offset, TimestampUs
from tests.simulation.groups.checks import Checks
from tests.simulation.groups.cursor_checks import CursorChecks
from tests.simulation.groups.messages import Message
from tests.simulation.groups.shard_log import Entry, ShardLog
from tests.simulation.groups.streams import Streams
from tests.simulation.groups.swarm import Swarm
from tests.simulation.network import Network
from tests.simulation.timeline import Timeline
from tests.simulation.trace import Trace
from tests.simulation.violation import Violation

PLACES = ("c1", "c2")
"""Where coordinators run."""


class World:
    """One run's time, chance, network, checkers, streams and log."""

    def __init__(self, rng: Random, swarm: Swarm, trace: Trace) -> None:
        self.rng, self.swarm, self.trace = rng, swarm, trace
        self.timeline = Timeline()
        self.network: Network[Message] = Network(self.timeline, rng, swarm.weather)
        self.streams = Streams(rng, swarm)
        self.checks = {name: Checks(self.timeline) for name in swarm.groups}
        self.cursor_checks = {
            name: CursorChecks(checks, self.streams) for name, checks in self.checks.items()
        }
        self.log = ShardLog(self.timeline, rng, swarm.write_mean, self._committed)
        self.log.flapping = swarm.flapping
        self.leader: str | None = None
        """The place that leads; another one may believe that it does."""
        self.steps = 0
        self.healing = False
        self.timeline.after(self.delay(swarm.produce_mean), self._produce)

    @property
    def now(self) -> int:
        return self.timeline.now

    def delay(self, mean: int) -> int:
        """Return a time of that mean, at most twice as long, at least 1 ns."""
        return int(2 * self.rng.random() * mean) + 1

    def coordinator(self) -> str:
        """Return where a member would ask now: where the leader is, mostly."""
        lost = self.leader is None or (not self.healing and self.rng.random() < 0.1)
        return self.rng.choice(PLACES) if lost else str(self.leader)

    def note(self, who: str, what: str) -> None:
        """Write a line of the trace; ask ``trace.on`` before composing it."""
        self.trace.line(self.now, who, what)

    def fault(self, kind: str, what: str) -> None:
        """Count a fault of ``kind`` and write it."""
        self.trace.fault(self.now, f"{kind} {what}", kind)

    def _produce(self) -> None:
        if not self.healing:
            self.streams.produce()
            self.timeline.after(self.delay(self.swarm.produce_mean), self._produce)

    def _committed(self, entry: Entry) -> None:
        """Check what becomes durable."""
        for key, value in entry.records:
            record = read_group_record(key, value, Offset(0), TimestampUs(entry.at))
            if record is None or not record.is_readable:
                raise Violation(f"{key!r} cannot be read")
            group = record.key.group
            if self.trace.on:
                self.note("log", f"{entry.at} of reign {entry.reign}: {_text(record)}")
            match record:
                case StoredGroup(state=None):
                    self.checks[group].deleted_group()
                    self.cursor_checks[group].deleted_group(entry)
                case StoredGroup(state=GroupState() as state):
                    self.checks[group].made_durable(state, entry.decided_at)
                case StoredGroupCursor(cursor=GroupCursorRecord() as cursor):
                    self.cursor_checks[group].made_durable(cursor, entry)
                case _:
                    pass  # a cursor that goes with its group


def process_of(connection: ConnectionId) -> str:
    """Return the process whose connection it is: ``p1#3`` is of the third life of ``p1``."""
    return connection.partition("#")[0]


def _text(record: StoredGroup | StoredGroupCursor) -> str:
    match record:
        case StoredGroup(key, _, state):
            members = "deleted" if state is None else f"g{state.generation} {sorted(state.members)}"
            return f"{key.group} {members}"
        case StoredGroupCursor(key, _, cursor):
            return f"{key.group} {key.partition} {cursor}"
