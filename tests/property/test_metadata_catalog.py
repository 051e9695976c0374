"""The catalogue against a model of plain dictionaries, and its laws under any commands at all."""

from typing import TypedDict

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from hypothesis.strategies import DataObject

from envelope.types import Incarnation, LeaderEpoch, LogIndex, NodeEpoch, NodeId, StreamName
from metadata.catalog import snapshot
from metadata.catalog.catalog import Catalog
from metadata.catalog.commands import (
    CancelReassignment,
    ChangeIsr,
    ChangeLeader,
    Command,
    ConfirmRemoval,
    CreateStream,
    DeleteStream,
    FinishReassignment,
    NodeAtEpoch,
    ReassignReplicas,
    decode_command,
    encode_command,
)
from metadata.catalog.events import (
    CommandRefused,
    IsrChanged,
    LeaderChanged,
    ReplicasReassigned,
    StreamCreated,
    StreamDeleted,
    StreamFound,
)
from metadata.stream_config import StreamConfig
from tests.support.catalogs import CREATED, NAMES, NODES, apply, commands, register, update
from tests.support.example_counts import examples

history = st.lists(commands, max_size=40)


@given(history)
def test_any_commands_leave_the_invariants_whole_and_raise_nothing(given_commands: list[Command]) -> None:
    catalog = Catalog()
    for command in given_commands:
        before = snapshot.encode(catalog)
        events = apply(catalog, command)
        catalog.audit()
        if isinstance(events[0], CommandRefused):
            assert events == events[:1]
            assert _rows(snapshot.encode(catalog)) == _rows(before), "a refusal changes nothing"


def _rows(data: bytes) -> bytes:
    return data[data.index(b'"nodes"') :]


@given(history)
def test_commands_read_back_equal_and_are_the_same_bytes_again(given_commands: list[Command]) -> None:
    for command in given_commands:
        payload = encode_command(command)
        decoded = decode_command(payload, LogIndex(1))
        assert decoded == command
        assert encode_command(decoded) == payload


@given(history)
def test_the_same_commands_give_the_same_events_and_the_same_snapshot_bytes(
    given_commands: list[Command],
) -> None:
    one, other = Catalog(), Catalog()
    for command in given_commands:
        reread = decode_command(encode_command(command), LogIndex(1))
        assert apply(one, command) == apply(other, reread)
    assert snapshot.encode(one) == snapshot.encode(other)


@given(history, st.data())
def test_a_snapshot_and_the_commands_behind_it_are_worth_all_commands(
    given_commands: list[Command], data: DataObject
) -> None:
    cut = data.draw(st.integers(0, len(given_commands)))
    whole, part = Catalog(), Catalog()
    for command in given_commands:
        apply(whole, command)
    for command in given_commands[:cut]:
        apply(part, command)
    part = snapshot.decode(snapshot.encode(part))
    for command in given_commands[cut:]:
        apply(part, command)
    assert snapshot.encode(part) == snapshot.encode(whole)


class ModelStream(TypedDict):
    subject: str
    replicas: tuple[str, ...]
    incarnation: str
    leader: str | None
    leader_epoch: int
    isr: dict[str, str]
    isr_version: int
    settled: int
    target: tuple[str, ...] | None
    departed: set[str]


class CatalogAgainstModel(RuleBasedStateMachine):
    """Mostly sensible commands, so that deep states are reached; the model is written independently."""

    def __init__(self) -> None:
        super().__init__()
        self.catalog = Catalog()
        self.epochs: dict[str, int] = {}
        self.disks: dict[str, str] = {}
        self.streams: dict[str, ModelStream] = {}
        self.owed: dict[str, set[str]] = {}
        self.lives = 0
        self.log: list[Command] = []

    def _apply(self, command: Command) -> object:
        self.log.append(command)
        return apply(self.catalog, command)[0]

    @rule(node=st.sampled_from(NODES), new_disk=st.sampled_from((False, False, True)))
    def start_node(self, node: str, new_disk: bool) -> None:
        disk = f"{node}-{self.epochs.get(node, 0)}" if new_disk else self.disks.get(node, f"{node}-first")
        self._apply(register(node, disk))
        self.epochs[node] = self.epochs.get(node, 0) + 1
        self.disks[node] = disk
        for stream in self.streams.values():
            if stream["leader"] == node:
                stream["leader"] = None
            if stream["isr"].get(node, disk) != disk and len(stream["isr"]) > 1:
                del stream["isr"][node]
                stream["isr_version"] += 1

    @rule(name=st.sampled_from(NAMES), subject=st.sampled_from(("a.>", "b")), data=st.data())
    def create_stream(self, name: str, subject: str, data: DataObject) -> None:
        if not self.epochs:
            return
        replicas = tuple(data.draw(st.lists(st.sampled_from(sorted(self.epochs)), min_size=1, unique=True)))
        self.lives += 1
        event = self._apply(
            CreateStream(
                config=StreamConfig(name=name, subject=subject, replicas=len(replicas)),
                incarnation=Incarnation(f"life-{self.lives}"),
                created=CREATED,
                replicas=tuple(NodeId(node) for node in replicas),
                leader=NodeId(replicas[-1]),
            )
        )
        known = self.streams.get(name)
        if known is None:
            assert isinstance(event, StreamCreated)
            self.streams[name] = {
                "subject": subject,
                "replicas": replicas,
                "incarnation": f"life-{self.lives}",
                "leader": replicas[-1],
                "leader_epoch": 1,
                "isr": {node: self.disks[node] for node in replicas},
                "isr_version": 1,
                "settled": len(replicas),
                "target": None,
                "departed": set(),
            }
        elif known["subject"] == subject and known["settled"] == len(replicas):
            assert isinstance(event, StreamFound)
        else:
            assert isinstance(event, CommandRefused)

    @rule(name=st.sampled_from(NAMES), subject=st.sampled_from(("a.>", "b", "c")))
    def update_stream(self, name: str, subject: str) -> None:
        event = self._apply(update(name, subject=subject))
        if name in self.streams:
            self.streams[name]["subject"] = subject
        else:
            assert isinstance(event, CommandRefused)

    @rule(name=st.sampled_from(NAMES))
    def delete_stream(self, name: str) -> None:
        event = self._apply(DeleteStream(StreamName(name)))
        known = self.streams.pop(name, None)
        if known is None:
            assert isinstance(event, CommandRefused)
        else:
            assert isinstance(event, StreamDeleted)
            self.owed.setdefault(known["incarnation"], set()).update(known["replicas"])

    @rule(data=st.data())
    def confirm_a_removal(self, data: DataObject) -> None:
        if not self.owed:
            return
        life = data.draw(st.sampled_from(sorted(self.owed)))
        node = data.draw(st.sampled_from(NODES))
        self._apply(ConfirmRemoval(NodeId(node), Incarnation(life)))
        self.owed[life].discard(node)
        if not self.owed[life]:
            del self.owed[life]

    @rule(name=st.sampled_from(NAMES), node=st.sampled_from(NODES), stale=st.sampled_from((0, 0, 0, 1)))
    def elect(self, name: str, node: str, stale: int) -> None:
        known = self.streams.get(name)
        if known is None:
            return
        event = self._apply(
            ChangeLeader(
                StreamName(name),
                Incarnation(known["incarnation"]),
                NodeId(node),
                NodeEpoch(self.epochs.get(node, 0)),
                LeaderEpoch(known["leader_epoch"] - stale),
            )
        )
        if not stale and node in self.disks and known["isr"].get(node) == self.disks[node]:
            assert isinstance(event, LeaderChanged)
            known["leader"] = node
            known["leader_epoch"] += 1
            known["departed"] = set()
        else:
            assert isinstance(event, CommandRefused)

    @rule(
        name=st.sampled_from(NAMES), members=st.sets(st.sampled_from(NODES)), stale=st.sampled_from((0, 0, 1))
    )
    def change_isr(self, name: str, members: set[str], stale: int) -> None:
        known = self.streams.get(name)
        if known is None or known["leader"] is None:
            return
        event = self._apply(
            ChangeIsr(
                stream=StreamName(name),
                incarnation=Incarnation(known["incarnation"]),
                leader=NodeId(known["leader"]),
                leader_epoch=LeaderEpoch(known["leader_epoch"]),
                expected_isr_version=known["isr_version"] - stale,
                isr=tuple(
                    NodeAtEpoch(NodeId(node), NodeEpoch(self.epochs.get(node, 0))) for node in sorted(members)
                ),
            )
        )
        if not stale and known["leader"] in members <= set(known["replicas"]):
            assert isinstance(event, IsrChanged)
            known["isr"] = {node: self.disks[node] for node in members}
            known["isr_version"] += 1
        else:
            assert isinstance(event, CommandRefused)

    def _become(self, known: ModelStream, event: object, replicas: tuple[str, ...]) -> bool:
        """Take in other replicas, unless all who are in sync would leave; tell whether they are in force."""
        isr = {node: disk for node, disk in known["isr"].items() if node in replicas}
        if isr != known["isr"] and not any(self.disks[node] == disk for node, disk in isr.items()):
            assert isinstance(event, CommandRefused)
            return False
        assert isinstance(event, ReplicasReassigned)
        left = set(known["replicas"]) - set(replicas)
        if known["departed"] & (set(replicas) - set(known["replicas"])):
            known["leader_epoch"] += 1
            known["departed"] = set()
        known["departed"] |= left
        if left:
            self.owed.setdefault(known["incarnation"], set()).update(left)
        known["replicas"], known["isr"] = replicas, isr
        known["isr_version"] += 1
        if known["leader"] not in replicas:
            known["leader"] = None
        return True

    @rule(name=st.sampled_from(NAMES), nodes=st.lists(st.sampled_from(NODES), min_size=1, unique=True))
    def reassign(self, name: str, nodes: list[str]) -> None:
        known = self.streams.get(name)
        if known is None:
            return
        target = tuple(nodes)
        event = self._apply(
            ReassignReplicas(
                StreamName(name), Incarnation(known["incarnation"]), tuple(NodeId(node) for node in nodes)
            )
        )
        settled = known["replicas"][: known["settled"]]
        if not set(target) <= self.epochs.keys() or self.owed.get(known["incarnation"], set()) & set(target):
            assert isinstance(event, CommandRefused)
        elif known["target"] is not None or target != settled:
            added = tuple(node for node in target if node not in settled)
            if self._become(known, event, settled + added):
                known["target"] = None if target == settled else target

    @rule(name=st.sampled_from(NAMES), stale=st.sampled_from((0, 0, 0, 1)))
    def finish(self, name: str, stale: int) -> None:
        known = self.streams.get(name)
        if known is None:
            return
        event = self._apply(
            FinishReassignment(
                StreamName(name),
                Incarnation(known["incarnation"]),
                known["isr_version"] - stale,
                LeaderEpoch(known["leader_epoch"]),
            )
        )
        target = known["target"]
        if stale or target is None or not set(target) <= known["isr"].keys() or known["leader"] not in target:
            assert isinstance(event, CommandRefused)
        elif self._become(known, event, target):
            known["settled"], known["target"] = len(target), None

    @rule(name=st.sampled_from(NAMES))
    def cancel(self, name: str) -> None:
        known = self.streams.get(name)
        if known is None:
            return
        event = self._apply(CancelReassignment(StreamName(name), Incarnation(known["incarnation"])))
        if known["target"] is None:
            assert isinstance(event, CommandRefused)
        elif self._become(known, event, known["replicas"][: known["settled"]]):
            known["target"] = None

    @rule()
    def restart_from_a_snapshot(self) -> None:
        self.catalog = snapshot.decode(snapshot.encode(self.catalog))

    @rule()
    def elect_whatever_is_due(self) -> None:
        for command in self.catalog.due_elections():
            assert isinstance(self._apply(command), LeaderChanged)
            known = self.streams[command.stream]
            known["leader"] = command.leader
            known["leader_epoch"] += 1
            known["departed"] = set()
        for known in self.streams.values():
            can_lead = any(self.disks[node] == disk for node, disk in known["isr"].items())
            assert (known["leader"] is not None) == can_lead

    @invariant()
    def catalogue_and_model_agree(self) -> None:
        self.catalog.audit()
        assert {node.node_id: node.node_epoch for node in self.catalog.nodes()} == self.epochs
        assert {removal.incarnation: set(removal.pending) for removal in self.catalog.removals()} == self.owed
        found: dict[str, ModelStream] = {
            stream.name: {
                "subject": stream.config.subject,
                "replicas": stream.replicas,
                "incarnation": stream.incarnation,
                "leader": stream.leader,
                "leader_epoch": stream.leader_epoch,
                "isr": {member.node_id: member.directory for member in stream.isr},
                "isr_version": stream.isr_version,
                "settled": stream.config.replicas,
                "target": stream.target,
                "departed": set(stream.departed),
            }
            for stream in self.catalog.streams()
        }
        assert found == self.streams

    def teardown(self) -> None:
        replayed = Catalog()
        for command in self.log:
            apply(replayed, decode_command(encode_command(command), LogIndex(1)))
        assert snapshot.encode(replayed) == snapshot.encode(self.catalog)


TestCatalogAgainstModel = CatalogAgainstModel.TestCase
TestCatalogAgainstModel.settings = settings(max_examples=examples(60), stateful_step_count=40)
