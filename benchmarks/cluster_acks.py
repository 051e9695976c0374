"""What each kind of ack costs with three copies: one publisher, one message at a time, 128 B.

The table of "Intra-cluster Replication in Apache Kafka" (no ack 0.29 ms, leader's ack 1.05 ms, committed
2.05 ms). Without an ack a publisher learns only that the NATS server has taken its message: it sends a PING
behind it and waits for the PONG. What was stored is counted after the run.
"""

from typing import Final

from benchmarks.cluster import load_of
from benchmarks.loadgen import Load
from benchmarks.measurement import Case, interleaved
from benchmarks.replicated import OURS_ALWAYS, OURS_OS, PEER_ALWAYS, PEER_DEFAULT, ClusterLaboratory
from benchmarks.report import Bar, Report, Settings, new_report, rows_of

SIZE_BYTES: Final = 128
OURS: Final = (OURS_ALWAYS, OURS_OS)
PEERS: Final = (PEER_DEFAULT, PEER_ALWAYS)
ACKS: Final = ("none", "leader", "all")
COMMITTED_MS_MAX: Final = 1.5
KAFKA_MS: Final = {"none": 0.29, "leader": 1.05, "all": 2.05}
"""As those slides have it, on other machines: stated beside ours."""


def run(settings: Settings) -> Report:
    """Measure the time until a publisher knows as much as each kind of ack tells it."""
    with ClusterLaboratory(settings.directory / "systems") as laboratory:
        cases = [
            Case(laboratory.system(name, ack=ack), _point(ack), _load(settings, ack))
            for ack in ACKS
            for name in OURS
        ]
        # Its streams know no policy: whoever asks is answered when a majority has the message.
        cases += [
            Case(laboratory.system(name), _point(ack), _load(settings, ack))
            for ack in ("none", "all")
            for name in PEERS
        ]
        measurements = interleaved(cases, settings.runs)
    report = new_report("cluster_acks", settings, rows_of(cases, measurements), size_bytes=SIZE_BYTES)
    return report.model_copy(update={"bars": [bar for ack in ACKS for bar in _bars(report, ack)]})


def _bars(report: Report, ack: str) -> list[Bar]:
    row = report.row(OURS_ALWAYS, _point(ack))
    return [
        Bar(
            requirement=f"ack {ack}: {OURS_ALWAYS}, p50 (ms)",
            value=row.p50_us / 1e3,
            bar=COMMITTED_MS_MAX if ack == "all" else None,
            at_most=True,
        ),
        Bar(requirement=f"ack {ack}: Kafka's slides (ms)", value=KAFKA_MS[ack]),
    ]


def _load(settings: Settings, ack: str) -> Load:
    return load_of(settings, 1, 1, SIZE_BYTES, asks=ack != "none")


def _point(ack: str) -> str:
    return f"ack {ack}"
