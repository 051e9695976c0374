"""The publish machine against a model that a reader can check: a list of records and a dictionary of ids."""

from dataclasses import dataclass, field, replace

from hypothesis import event, given, settings
from hypothesis import strategies as st

from envelope.errors import DiskFull, FsyncFailed, InvalidHeader, TxidDecreasing
from envelope.types import AckPolicy
from jetstream.ingest.machine import APPENDS_IN_FLIGHT_MAX
from jetstream.ingest.publishers.dedupe import name_of
from tests.support.example_counts import examples
from tests.support.ingest_machine import IngestHarness, outcomes
from tests.support.messages import PublishedMessage

RECORD_BYTES_MAX = 1000

Outcomes = list[tuple[str, object]]

IDS = st.sampled_from(["a", "b", "c", "d"])


@dataclass(frozen=True)
class Spec:
    """A message with at most one of each header; sequences are relative to the log's end."""

    has_reply: bool = True
    message_id: str | None = None
    ack: AckPolicy | None = None
    stream: str | None = None
    last_sequence: int | None = None
    last_id: str | None = None
    txid: int | None = None
    is_large: bool = False
    is_broken: bool = False


def mostly_none(values: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.one_of(st.none(), st.none(), st.none(), values)


SPECS = st.builds(
    Spec,
    has_reply=st.sampled_from([True, True, True, False]),
    message_id=st.one_of(st.none(), IDS),
    ack=mostly_none(st.sampled_from(AckPolicy)),
    stream=mostly_none(st.sampled_from(["orders", "audit", "nobody"])),
    last_sequence=mostly_none(st.integers(-1, 1)),
    last_id=mostly_none(IDS),
    txid=mostly_none(st.integers(0, 9)),
    is_large=st.sampled_from([False] * 9 + [True]),
    is_broken=st.sampled_from([False] * 9 + [True]),
)
PLAIN = st.builds(Spec, has_reply=st.booleans())
IDENTIFIED = st.builds(
    Spec,
    has_reply=st.booleans(),
    message_id=st.one_of(st.integers(0, 60).map(str), st.integers(0, 60).map("a long id of {:050}".format)),
)


@dataclass
class Model:
    """What a publisher may rely on, without a thought for speed."""

    ack: AckPolicy
    records: list[tuple[bytes, str | None]] = field(default_factory=list)  # (payload, id)
    txids: list[int] = field(default_factory=list)
    ids: dict[str, int] = field(default_factory=dict)
    high_watermark: int = 0

    def policy(self, spec: Spec) -> AckPolicy:
        """When the message is answered."""
        return AckPolicy.NONE if spec.stream == "audit" else spec.ack or self.ack

    def verdict(self, spec: Spec, sequence: int | None) -> int | str | None:
        """Return the error, the original's offset, or None: store."""
        listens = self.ack is AckPolicy.NONE and spec.ack is None and spec.stream is None
        addressed = spec.stream != "audit" and not listens
        last_id = self.records[-1][1] if self.records else None
        rules: list[tuple[bool, int | str | None]] = [
            (spec.stream == "nobody", "error 10060"),
            (spec.is_large, "error 10054"),
            (spec.is_broken, f"error {InvalidHeader.ack_code}"),
            (spec.message_id in self.ids, self.ids.get(spec.message_id or "")),
            (addressed and sequence not in (None, len(self.records)), "error 10071"),
            (addressed and spec.last_id not in (None, last_id), "error 10070"),
            (
                spec.txid is not None and spec.txid < max(self.txids, default=0),
                f"error {TxidDecreasing.ack_code}",
            ),
        ]
        return next((outcome for applies, outcome in rules if applies), None)


def as_message(spec: Spec, number: int, sequence: int | None) -> tuple[PublishedMessage, bytes]:
    payload = b"%d" % number + (b"x" * RECORD_BYTES_MAX if spec.is_large else b"")
    pairs = {
        "Nats-Msg-Id": spec.message_id,
        "Jetstream-Ack": spec.ack,
        "Nats-Expected-Stream": spec.stream,
        "Nats-Expected-Last-Sequence": sequence,
        "Nats-Expected-Last-Msg-Id": spec.last_id,
        "Jetstream-Txid": "x" if spec.is_broken else spec.txid,
    }
    headers = tuple((name, str(value)) for name, value in pairs.items() if value is not None)
    return PublishedMessage(
        payload, reply=b"r%d" % number if spec.has_reply else b"", headers=headers
    ), payload


@dataclass
class Flying:
    """A group whose append is in flight, and the model as it was before."""

    before: Model
    at_append: Outcomes
    at_commit: list[tuple[int, str, object]]

    @property
    def base(self) -> int:
        """Offset of its first record."""
        return len(self.before.records)


@dataclass
class Run:
    """One history: the machine and the model side by side."""

    machine: IngestHarness
    model: Model
    number: int = 0
    flying: list[Flying] = field(default_factory=list)
    doomed: int = 0
    waiting: list[tuple[int, str, object]] = field(default_factory=list)  # (offset to pass, reply, outcome)
    replies_seen: list[str] = field(default_factory=list)
    outcomes: set[str] = field(default_factory=set)

    def check(self, answers: Outcomes, expected: Outcomes) -> None:
        """The machine answers as the model, nobody twice."""
        assert sorted(answers, key=str) == sorted(expected, key=str)
        self.replies_seen += [reply for reply, _ in answers]
        assert len(set(self.replies_seen)) == len(self.replies_seen)

    def block(self, specs: list[Spec]) -> None:
        """Receive a block; its append is then in flight."""
        if len(self.flying) + self.doomed == APPENDS_IN_FLIGHT_MAX:
            self.end("appended")
        model = self.model
        before = replace(model, records=list(model.records), txids=list(model.txids), ids=dict(model.ids))
        messages, at_once, at_append, at_commit = self.judged(specs)
        self.check(outcomes(self.machine.receive(*messages)), at_once)
        repeats = [each for each in at_commit if str(each[2]).startswith("dup ")]
        group = Flying(before, at_append, [each for each in at_commit if each not in repeats])
        self.waiting += repeats
        first = self.flying[0].base if self.flying else group.base
        in_flight = self.machine.in_flight
        assert in_flight[len(in_flight) - (len(model.records) - first) :] == [
            payload for payload, _ in model.records[first:]
        ]
        if len(model.records) > group.base:
            self.flying.append(group)

    def end(self, outcome: str) -> None:
        """Let the oldest append in flight end."""
        if self.doomed:
            self.doomed -= 1
            self.check(outcomes(self.machine.refuse(DiskFull("the one before was refused"))), [])
            return
        if not self.flying:
            return
        event(outcome)
        self.outcomes.add(outcome)
        group = self.flying[0]
        if outcome == "appended":
            self.check(outcomes(self.machine.append()), group.at_append)
            self.waiting += group.at_commit
            del self.flying[0]
            return
        waiting = self.waiting + [each for group in self.flying for each in group.at_commit]
        if outcome == "unknown":
            self.check(outcomes(self.machine.fail(FsyncFailed("input/output error"))), [])
        else:
            refused = {reply for group in self.flying for reply, _ in group.at_append}
            refused |= {reply for original, reply, _ in waiting if original >= group.base}
            expected: Outcomes = [(reply, "error 10047") for reply in refused]
            self.check(outcomes(self.machine.refuse(DiskFull("full"))), expected)
        self.doomed = len(self.flying) - 1
        self.waiting = [each for each in self.waiting if each[0] < group.base]
        self.model = replace(group.before, high_watermark=self.model.high_watermark)
        self.flying.clear()

    def end_all(self) -> None:
        """Let every append in flight succeed, and the doomed ones be refused."""
        while self.flying or self.doomed:
            self.end("appended")

    def judged(
        self, specs: list[Spec]
    ) -> tuple[list[PublishedMessage], Outcomes, Outcomes, list[tuple[int, str, object]]]:
        """Let the model decide about a block; return the messages and what is answered when."""
        model = self.model
        at_once: Outcomes = []
        at_append: Outcomes = []
        at_commit: list[tuple[int, str, object]] = []
        messages: list[PublishedMessage] = []
        for spec in specs:
            offset = len(model.records)
            # What the publisher expects is relative to the end at that point, so that it is often right.
            sequence = None if spec.last_sequence is None else max(0, offset + spec.last_sequence)
            published, payload = as_message(spec, self.number, sequence)
            messages.append(published)
            reply = f"r{self.number}"
            self.number += 1
            verdict = model.verdict(spec, sequence)
            policy = model.policy(spec) if spec.has_reply else AckPolicy.NONE
            told = policy is not AckPolicy.NONE
            if isinstance(verdict, str):
                at_once += [(reply, verdict)] * told
            elif verdict is not None and verdict < model.high_watermark:
                at_once += [(reply, f"dup {verdict}")] * told
            elif verdict is not None:
                at_commit += [(verdict, reply, f"dup {verdict}")] * told
            else:
                self.store(spec, payload)
                at_append += [(reply, offset)] * (policy is AckPolicy.LEADER)
                at_commit += [(offset, reply, offset)] * (policy is AckPolicy.ALL)
        return messages, at_once, at_append, at_commit

    def store(self, spec: Spec, payload: bytes) -> None:
        """Add a record to the model."""
        if spec.message_id is not None:
            self.model.ids[spec.message_id] = len(self.model.records)
        if spec.txid is not None:
            self.model.txids.append(spec.txid)
        self.model.records.append((payload, spec.message_id))

    def commit(self, share: int) -> None:
        """Move the high watermark on, by all or a part of what is not committed."""
        model = self.model
        appended = self.flying[0].base if self.flying else len(model.records)
        model.high_watermark += (appended - model.high_watermark) * share // 2
        due: Outcomes = [
            (reply, outcome) for offset, reply, outcome in self.waiting if offset < model.high_watermark
        ]
        self.check(outcomes(self.machine.commit(model.high_watermark)), due)
        self.waiting = [each for each in self.waiting if each[0] >= model.high_watermark]


BLOCKS = st.one_of(
    st.lists(SPECS, max_size=8),
    st.lists(PLAIN, max_size=8),
    st.lists(IDENTIFIED, max_size=8),
    st.lists(st.one_of(PLAIN, SPECS), max_size=12),
)
STEPS = st.lists(
    st.one_of(
        BLOCKS,
        st.sampled_from(["appended", "appended", "appended", "refused"]),
        st.sampled_from([0, 1, 2, 2]),
    ),
    max_size=24,
)


def play(run: Run, steps: list[int | str | list[Spec]]) -> None:
    for step in steps:
        if isinstance(step, int):
            run.commit(step)
        elif isinstance(step, str):
            run.end(step)
        else:
            run.block(step)


@settings(max_examples=examples(400))
@given(ack=st.sampled_from(AckPolicy), steps=STEPS)
def test_the_machine_does_what_the_model_does(ack: AckPolicy, steps: list[int | str | list[Spec]]) -> None:
    run = Run(IngestHarness(ack, record_bytes_max=RECORD_BYTES_MAX), Model(ack))
    play(run, steps)
    run.end_all()
    run.commit(2)
    assert run.waiting == []
    assert run.machine.machine.pending_acks == 0
    assert run.machine.values == [payload for payload, _ in run.model.records]
    assert run.machine.column("offset") == list(range(len(run.model.records)))
    assert run.machine.machine.log_end_offset == len(run.model.records)


@settings(max_examples=examples(100))
@given(ack=st.sampled_from(AckPolicy), steps=STEPS, last=BLOCKS, second=BLOCKS, later=BLOCKS)
def test_after_an_unknown_outcome_nothing_is_stored_and_nobody_is_misled(
    ack: AckPolicy,
    steps: list[int | str | list[Spec]],
    last: list[Spec],
    second: list[Spec],
    later: list[Spec],
) -> None:
    run = Run(IngestHarness(ack, record_bytes_max=RECORD_BYTES_MAX), Model(ack))
    play(run, steps)
    run.end_all()
    known = dict(run.model.ids)
    run.block(last)
    run.block(second)
    run.end("unknown")
    run.end_all()
    if "unknown" not in run.outcomes:
        return
    stored, committed = len(run.model.records), run.model.high_watermark
    first = run.number
    messages = [as_message(spec, first + place, None)[0] for place, spec in enumerate(later)]
    answered = dict(outcomes(run.machine.receive(*messages)))
    assert run.machine.in_flight == []
    remembered = run.machine.machine.dedupe
    for place, spec in enumerate(later):
        told = spec.has_reply and run.model.policy(spec) is not AckPolicy.NONE
        outcome = answered.get(f"r{first + place}")
        if spec.message_id is None or remembered.lookup(name_of(spec.message_id.encode())) is None:
            assert str(outcome).startswith("error ") if told else outcome is None
        elif known.get(spec.message_id, committed) < committed:
            assert outcome == (f"dup {known[spec.message_id]}" if told else None)
        else:
            assert outcome is None, "committed or not, stored or not: nobody knows, so nobody says"
    run.commit(2)
    assert run.waiting == []
    assert len(run.machine.values) == stored
