"""What is done to the members of the group."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from tests.chaos.cluster import asked
from tests.chaos.fault import Fault
from tests.chaos.workforce import MEMBERS, SHARD, SUBSCRIBED, Workforce


@dataclass
class MemberFaults:
    """Carries out those that strike members."""

    workforce: Workforce

    @property
    def strikes(self) -> Mapping[str, Callable[[Fault], Awaitable[str]]]:
        """How each kind is carried out; they return what was done to whom."""
        return {
            "member-kill": self._kill,
            "member-stop": self._stop,
            "member-pause": self._pause,
            "member-cut": self._cut,
            "member-slow": self._slow,
        }

    def _victims(self, fault: Fault) -> list[str]:
        one = int(fault.number * len(MEMBERS))
        count = {"all": len(MEMBERS), "majority": len(MEMBERS) // 2 + 1}.get(fault.role, 1)
        return sorted((MEMBERS[one:] + MEMBERS[:one])[:count])

    async def _kill(self, fault: Fault) -> str:
        names = self._victims(fault)
        for name in names:
            await self.workforce.kill(name)
        return " ".join(names)

    async def _stop(self, fault: Fault) -> str:
        names = self._victims(fault)
        for name in names:
            self.workforce.stop(name)
        return " ".join(names)

    async def _pause(self, fault: Fault) -> str:
        names = self._victims(fault)
        for name in names:
            self.workforce.pause(name)
        return " ".join(names)

    async def _cut(self, fault: Fault) -> str:
        """Cut members off from their coordinator alone, from the leader of a stream alone, or from all."""
        names, nodes = self._victims(fault), sorted(self.workforce.cluster.nodes)
        if fault.shape == "from metadata":
            nodes = [await self._leader(SHARD) or nodes[0]]
        elif fault.shape in ("halves", "ring"):
            nodes = [await self._leader(SUBSCRIBED[-1]) or nodes[0]]
        self.workforce.cut_off(names, nodes, fault.shape)
        return f"{fault.shape}: {' '.join(names)} from {' '.join(nodes)}"

    async def _leader(self, stream: str) -> str | None:
        leader = (await asked(self.workforce.client, "stream.info", 1.0, name=stream)).get("leader")
        return leader if isinstance(leader, str) else None

    async def _slow(self, fault: Fault) -> str:
        names, delay_s = self._victims(fault), 0.5 * fault.number**2
        self.workforce.slow(names, delay_s)
        return f"{' '.join(names)} by {delay_s * 1000:.0f} ms"
