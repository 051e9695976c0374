"""What tickets cost: a ticket and a hello, a hello alone, and small fetches, beside the same without them.

Three nodes, each with a NATS server of its own, want nothing, a token and a ticket of their readers. Each has
the same stream, in batches of one record: a check of each fetch would show.
"""

import asyncio
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import nats
from nats.aio.client import Client

from benchmarks.loadgen import Address
from benchmarks.measurement import tell
from benchmarks.process_stats import ProcessSample
from benchmarks.processes import nats_server, node
from benchmarks.raw_protocol import BlockingConnection, encode
from benchmarks.report import Bar, Report, Row, Settings, new_report
from benchmarks.systems import ask, each, node_socket
from benchmarks.wake_up import percentile

STREAM: Final = "shop/orders"
SUBJECT: Final = "orders.eu.de"
RECORDS: Final = 256
SIZE_BYTES: Final = 128
TOKEN: Final = "what-executors-show"  # noqa: S105 - of servers that end with the benchmark
HELLOS: Final = 2_000
HELLOS_QUICK: Final = 200
"""Of one run: each takes a port, and the machine has some 28,000."""
IN_FLIGHT: Final = 32
FETCH_BYTES: Final = 1024 * 1024
"""More than the whole stream has."""

REQUEST_MS_MAX: Final = 5.0
CPU_RATIO_MAX: Final = 1.1

NOTHING, WITH_TOKEN, WITH_TICKET = "nothing", "token", "ticket"
SOCKETS: Final = {
    NOTHING: 'require = "none"',
    WITH_TOKEN: f'require = "token"\ntoken = "{TOKEN}"',
    WITH_TICKET: 'require = "ticket"',
}
"""Settings by what readers must show."""


@dataclass(frozen=True, slots=True)
class Site:
    """A node that is measured."""

    require: str
    address: Address
    """Of its NATS server."""
    socket: str
    pid: int


@dataclass(frozen=True, slots=True)
class Access:
    """A way to read."""

    require: str
    subject: str | None = None
    """Of the records that are read, and of the ticket; None: all."""

    @property
    def system(self) -> str:
        """What tables call it."""
        return self.require if self.subject is None else f"{self.require}, records on a subject"

    @property
    def question(self) -> str:
        """What a client asks over NATS before it reads: for a ticket, or where the nodes are."""
        if self.require != WITH_TICKET:
            return "cluster.info"
        on_subject = "" if self.subject is None else f".subject.{self.subject}"
        return f"read.{STREAM.replace('/', '.')}{on_subject}"

    def hello(self, answer: dict[str, str]) -> dict[str, str]:
        """Return what a hello shows, by the answer to `question`."""
        shown = {NOTHING: {}, WITH_TOKEN: {"token": TOKEN}, WITH_TICKET: {"ticket": answer.get("ticket", "")}}
        return shown[self.require]


WHOLE: Final = tuple(Access(require) for require in SOCKETS)
SOME: Final = tuple(Access(require, SUBJECT) for require in (NOTHING, WITH_TICKET))


@dataclass(frozen=True, slots=True)
class Run:
    """What one run has shown."""

    operations: int
    seconds: float
    node_cpu_seconds: float
    latencies_us: list[float]
    """Of each; empty where several are in flight."""

    @property
    def node_cpu_us(self) -> float:
        """CPU of the node for each, in microseconds."""
        return 1e6 * self.node_cpu_seconds / max(1, self.operations)


Measure = Callable[[Site, Access, Settings], Run]


def run(settings: Settings) -> Report:
    """Measure requests, hellos and fetches of each way to read, one after the other."""
    found: dict[tuple[str, Access], list[Run]] = {}
    with ExitStack() as stack:
        sites = {require: stack.enter_context(_site(require, settings.directory)) for require in SOCKETS}
        for number in range(settings.runs):
            for point, (measure, accesses) in MEASURES.items():
                for access in accesses:
                    measured = measure(sites[access.require], access, settings)
                    found.setdefault((point, access), []).append(measured)
                    rate = measured.operations / measured.seconds
                    tell(f"{number + 1}/{settings.runs}  {point:30} {access.system:32} {rate:>9,.0f}/s")
    rows = [_row(point, access, runs) for (point, access), runs in found.items()]
    report = new_report("tickets", settings, rows, rate_unit="per second", in_flight=IN_FLIGHT)
    return report.model_copy(update={"bars": _bars(report)})


@contextmanager
def _site(require: str, directory: Path) -> Iterator[Site]:
    below = directory / require
    with (
        nats_server(below / "nats") as (address, _),
        node(below / "node", address, socket=SOCKETS[require]) as pid,
    ):
        asyncio.run(_fill(address))
        yield Site(require, address, node_socket(address), pid)


async def _fill(address: Address) -> None:
    """Publish each record when the one before is acked: so each is a batch of its own."""
    client = await nats.connect(address.url)
    await ask(client, "stream.create", {"name": STREAM, "subject": "orders.>", "rewrite_after": 0})
    for _ in range(RECORDS):
        await client.request(SUBJECT, b"x" * SIZE_BYTES, timeout=30)
    await client.close()


# --- measuring ---------------------------------------------------------------------------------------


def _ask_and_greet(site: Site, access: Access, settings: Settings) -> Run:
    async def act() -> list[float]:
        client = await nats.connect(site.address.url)
        times = []
        for _ in range(_hellos(settings)):
            begun = time.perf_counter()
            _greet(site, access.hello(await _asked(client, access)))
            times.append(1e6 * (time.perf_counter() - begun))
        await client.close()
        return times

    return _timed(site, lambda: asyncio.run(act()))


def _greet_alone(site: Site, access: Access, settings: Settings) -> Run:
    shown = _shown(site, access)

    def act() -> list[float]:
        times = []
        for _ in range(_hellos(settings)):
            begun = time.perf_counter()
            _greet(site, shown)
            times.append(1e6 * (time.perf_counter() - begun))
        return times

    return _timed(site, act)


def _fetch_one(site: Site, access: Access, settings: Settings) -> Run:
    """Fetch record after record: a check of each fetch is one of each record."""
    return _fetch(site, access, settings, [(offset, 1, 1) for offset in range(RECORDS)])


def _fetch_all(site: Site, access: Access, settings: Settings) -> Run:
    """Fetch the whole stream over and over."""
    return _fetch(site, access, settings, [(0, FETCH_BYTES, RECORDS)] * IN_FLIGHT)


def _fetch(site: Site, access: Access, settings: Settings, wanted: list[tuple[int, int, int]]) -> Run:
    """Fetch over and over, some at once; ``wanted``: offsets, bytes, and how many records are there."""
    connection = BlockingConnection(site.socket, **_shown(site, access))
    selected = {} if access.subject is None else {"subject": access.subject}
    requests = [
        encode(op="fetch", id=number, stream=STREAM, offset=offset, max_bytes=bytes_max, **selected)
        for number, (offset, bytes_max, _) in enumerate(wanted, start=1)
    ]
    rounds = [b"".join(requests[first : first + IN_FLIGHT]) for first in range(0, len(requests), IN_FLIGHT)]
    records = {count for _, _, count in wanted}

    def fetched(seconds: float, *, is_grown: bool) -> int:
        """Return how many were answered; the first selected answers on a connection are smaller."""
        fetches, ends_at = 0, time.monotonic() + seconds
        while time.monotonic() < ends_at:
            for sent in rounds:
                answers = connection.exchange(sent, IN_FLIGHT)
                assert not is_grown or {answer["records"] for answer in answers} == records, answers[0]
                fetches += len(answers)
        return fetches

    fetched(settings.warmup_seconds, is_grown=False)
    before, begun = ProcessSample.of(site.pid).cpu_seconds, time.monotonic()
    fetches = fetched(settings.seconds, is_grown=True)
    seconds = time.monotonic() - begun
    spent = ProcessSample.of(site.pid).cpu_seconds - before
    connection.socket.close()
    return Run(fetches, seconds, spent, [])


def _timed(site: Site, act: Callable[[], list[float]]) -> Run:
    before, begun = ProcessSample.of(site.pid).cpu_seconds, time.monotonic()
    times = act()
    seconds = time.monotonic() - begun
    return Run(len(times), seconds, ProcessSample.of(site.pid).cpu_seconds - before, times)


def _greet(site: Site, shown: dict[str, str]) -> None:
    BlockingConnection(site.socket, **shown).socket.close()


def _shown(site: Site, access: Access) -> dict[str, str]:
    (answer,) = each(site.address, [access], _asked)
    return access.hello(answer)


async def _asked(client: Client, access: Access) -> dict[str, str]:
    return await ask(client, access.question, {})


def _hellos(settings: Settings) -> int:
    return HELLOS_QUICK if settings.quick else HELLOS


ASKED, GREETED = "request over NATS, then hello", "hello"
FETCHED_ONE, FETCHED_ALL = "fetch of one record", f"fetch of {RECORDS} records"
MEASURES: Final[dict[str, tuple[Measure, tuple[Access, ...]]]] = {
    ASKED: (_ask_and_greet, WHOLE),
    GREETED: (_greet_alone, WHOLE),
    FETCHED_ONE: (_fetch_one, WHOLE + SOME),
    FETCHED_ALL: (_fetch_all, WHOLE + SOME),
}


# --- the report --------------------------------------------------------------------------------------


def _row(point: str, access: Access, runs: list[Run]) -> Row:
    rates = [one.operations / one.seconds for one in runs]
    return Row(
        system=access.system,
        point=point,
        rate=statistics.median(rates),
        rate_min=min(rates),
        rate_max=max(rates),
        p50_us=statistics.median(percentile(one.latencies_us, 0.5) for one in runs),
        p99_us=statistics.median(percentile(one.latencies_us, 0.99) for one in runs),
        details={"node CPU us each": statistics.median(one.node_cpu_us for one in runs)},
        runs=[{**asdict(one), "latencies_us": len(one.latencies_us)} for one in runs],
    )


def _bars(report: Report) -> list[Bar]:
    def cpu(access: Access, point: str) -> float:
        return report.row(access.system, point).details["node CPU us each"]

    nothing, with_token, with_ticket = WHOLE
    pairs = ((with_token, nothing), (with_ticket, nothing), (SOME[1], SOME[0]))
    asked, greeted = report.row(with_ticket.system, ASKED), report.row(with_ticket.system, GREETED)
    without = report.row(nothing.system, GREETED)
    return [
        Bar(
            requirement="a ticket and a hello, p50 (ms)",
            value=asked.p50_us / 1e3,
            bar=REQUEST_MS_MAX,
            at_most=True,
        ),
        Bar(requirement="a ticket and a hello, p99 (ms)", value=asked.p99_us / 1e3),
        Bar(requirement="what a ticket adds to a hello, p50 (us)", value=greeted.p50_us - without.p50_us),
        *(
            Bar(
                requirement=f"{FETCHED_ONE}, node CPU (us): {access.system}, more than {other.system}",
                value=cpu(access, FETCHED_ONE) - cpu(other, FETCHED_ONE),
            )
            for access, other in pairs
        ),
        *(
            Bar(
                requirement=f"{FETCHED_ALL}, node CPU: {access.system}, of {other.system}",
                value=cpu(access, FETCHED_ALL) / cpu(other, FETCHED_ALL),
                bar=CPU_RATIO_MAX,
                at_most=True,
            )
            for access, other in pairs
        ),
    ]
