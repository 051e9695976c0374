"""Members of one group that share streams while some are killed, or come and go."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Final

from benchmarks import loadgen
from benchmarks.arrivals import Arrival, longest_pause_ms, taken_over_ms
from benchmarks.helper_process import HelperProcess, helper
from benchmarks.loadgen import Address, Load
from benchmarks.processes import ProcessError, stop
from benchmarks.systems import ask, each

STREAMS: Final = 8
RATE: Final = 320.0
"""Records a second, all streams together: one of each in 25 ms."""
SUBJECT: Final = "moves"
GROUP: Final = "moves"
MEMBERS: Final = 3
CHANGES: Final = 5
"""How often one comes and goes while the others are watched."""
LOOK_SECONDS: Final = 0.1
SETTLE_SECONDS_MAX: Final = 60.0


@dataclass(slots=True, eq=False)
class Member:
    """One running member, and what it has read."""

    process: HelperProcess
    arrivals: list[Arrival] = field(default_factory=list)


Owned = dict[Member, set[str]]


@dataclass(slots=True)
class Members:
    """Those that run."""

    address: Address
    session_seconds: float
    stack: ExitStack
    running: list[Member] = field(default_factory=list)

    def start(self) -> None:
        """Start one more and let it join."""
        words = ("--url", self.address.url, "--group", GROUP, "--streams", ",".join(_streams()))
        process = self.stack.enter_context(
            helper("group_consumer", *words, "--session-s", self.session_seconds)
        )
        process.hear("ready")
        process.say("join")
        self.running.append(Member(process))

    def owned(self) -> Owned:
        """Return what each has."""
        for member in self.running:
            member.process.say("owned")
        return {member: set(member.process.hear("owned")["streams"]) for member in self.running}

    def look(self) -> None:
        """Take in what has arrived."""
        for member in self.running:
            member.process.say("seen")
        for member in self.running:
            member.arrivals += [Arrival(*fields) for fields in member.process.hear("seen")["seen"]]

    def settled(self) -> Owned:
        """Wait until all streams are shared out evenly and read; what came before is forgotten."""
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        while time.monotonic() < deadline:
            self.look()
            for member in self.running:
                member.arrivals.clear()
            owned = self.owned()
            time.sleep(LOOK_SECONDS)
            self.look()
            counts = [len(streams) for streams in owned.values()]
            is_read = all(
                streams <= {each.stream for each in member.arrivals} for member, streams in owned.items()
            )
            if sum(counts) == STREAMS and max(counts) - min(counts) <= 1 and is_read:
                return owned
        raise ProcessError(f"the members do not settle: {[sorted(each) for each in self.owned().values()]}")

    def taken_over(self, streams: set[str], since_ns: int) -> float:
        """Wait until these are read; return how long it took from ``since_ns`` to the last, in ms."""
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        while time.monotonic() < deadline:
            self.look()
            arrivals = [arrival for member in self.running for arrival in member.arrivals]
            milliseconds = taken_over_ms(arrivals, streams, since_ns)
            if milliseconds is not None:
                return milliseconds
            time.sleep(LOOK_SECONDS)
        raise ProcessError(f"nobody reads all of {sorted(streams)}")

    def killed(self) -> float:
        """Kill one; return after how many milliseconds others read all that it had."""
        owned = self.settled()
        struck = self.running.pop(0)
        struck_ns = time.time_ns()
        struck.process.process.kill()
        milliseconds = self.taken_over(owned[struck], struck_ns)
        self.start()
        return milliseconds

    def left(self) -> float:
        """Let one leave; return after how many milliseconds others read all that it had."""
        owned = self.settled()
        leaver = self.running.pop(0)
        leaver.process.say("leave")
        begun_ns = leaver.process.hear("left")["begun_ns"]
        milliseconds = self.taken_over(owned[leaver], begun_ns)
        leaver.process.say("join")
        self.running.append(leaver)
        return milliseconds

    def longest_pause(self, *, changes: bool) -> float:
        """Return the longest pause, in ms, of those streams that their members keep.

        With ``changes`` the last member leaves and joins; without it nobody does, for as long.
        """
        kept = self.settled()
        *stay, mover = self.running
        begun_ns = time.time_ns()
        for word in ("leave", "join") * CHANGES:
            if changes:
                mover.process.say(word)
            if changes and word == "leave":
                mover.process.hear("left")
            time.sleep(3 * LOOK_SECONDS)
            owned = self.owned()
            kept = {member: kept[member] & owned[member] for member in stay}
        ended_ns = time.time_ns()
        self.look()
        return max(
            longest_pause_ms(member.arrivals, stream, begun_ns, ended_ns)
            for member, streams in kept.items()
            for stream in streams
        )


@contextmanager
def sharing(address: Address, session_seconds: float) -> Iterator[Members]:
    """Create the streams, publish to them by the clock, and run members while the block runs."""
    bodies = [
        {"name": name, "subject": f"{SUBJECT}.{number}", "sync": "os"}
        for number, name in enumerate(_streams())
    ]
    each(address, bodies, lambda client, body: ask(client, "stream.create", body))
    with ExitStack() as stack:
        stack.enter_context(_flowing(address))
        members = Members(address, session_seconds, stack)
        for _ in range(MEMBERS):
            members.start()
        yield members


def _streams() -> list[str]:
    return [f"MOVES-{number}" for number in range(STREAMS)]


@contextmanager
def _flowing(address: Address) -> Iterator[None]:
    """Publish records by the clock while the block runs, to each stream in turn."""
    load = Load(1, 1000, 128, subjects=STREAMS, seconds=3600.0, rate=RATE)
    target = ["--subject", SUBJECT, f"--host={address.host}", f"--port={address.port}"]
    command = [str(loadgen.build()), "publish", *target, *load.arguments()]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            stop(process)
