"""What is done to the machines of nodes: a disk is replaced, a clock moved, descriptors taken.

What was acked may be gone only where all who had it in sync have lost it. So a disk is lost when all is whole
and nobody creates or moves streams, and one at a time: either others lead all streams, and the node's lease
is over, before its files are removed: from then on it can neither be elected nor be the last one in sync. Or
it was killed together with all others, so that the catalogue stays as it was when all was whole. Nothing that
was acked may ever be missing, whatever comes next.
"""

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from nats.aio.client import Client

from tests.chaos.administrator import Administrator
from tests.chaos.aftermath import (
    directories,
    is_whole,
    problems_of_recovery,
    problems_of_voters,
    whole_seconds,
)
from tests.chaos.cluster import ChaosCluster, asked, passes
from tests.chaos.fault import Fault

_OUT_SECONDS: Final = 20.0
"""How long it may take until the cluster goes on without a node that was killed."""
_DECADES: Final = 4.3
"""A clock is moved by a second to ten to the power of this: five and a half hours."""
_FEW_MAX: Final = 8
_PAGE: Final = 500


@dataclass
class HostFaults:
    """Carries them out."""

    cluster: ChaosCluster
    client: Client
    administrator: Administrator
    streams: Sequence[str]
    problems: list[str] = field(default_factory=list)
    """Why all was not whole again in time, before a disk could be lost."""

    def strikes(self, victims: list[str]) -> Mapping[str, Callable[[Fault], Awaitable[str]]]:
        """How each kind is carried out on these nodes; they return what was done to whom."""
        return {
            "wipe": partial(self._wipe, victims),
            "blank-stream": partial(self._blank_stream, victims),
            "clock": partial(self._clock, victims),
            "descriptors": partial(self._descriptors, victims),
        }

    # --- disks ------------------------------------------------------------------------------------

    async def _wipe(self, victims: list[str], fault: Fault) -> str:
        """Have a node without which every stream goes on come back with an empty data directory."""
        async with self.administrator.at_rest:
            if not await self._all_is_whole():
                return "skipped: not everything is whole"
            rows = await self._rows()
            names = sorted(self.cluster.nodes, key=lambda name: (name not in victims, name))
            needed = {row["isr"][0] for row in rows if len(row["isr"]) == 1}
            name = next((name for name in names if name not in needed), None)
            if name is None or not rows:
                return f"skipped: {' '.join(sorted(needed))} alone have a stream"
            await self.cluster.kill(name)
            if waiting := await self._dependent(name):
                return f"skipped: killed {name}, on which still depends {waiting}"
            self.cluster.wipe(name)
        await self._start(name, fault)
        return name

    async def _blank_stream(self, victims: list[str], fault: Fault) -> str:
        """Have a node that was killed, or all at once, come back without one of its streams."""
        async with self.administrator.at_rest:
            if not await self._all_is_whole():
                return "skipped: not everything is whole"
            stream = self.streams[int(fault.number * len(self.streams))]
            info = await asked(self.client, "stream.info", name=stream)
            if not is_whole(info):
                return f"skipped: {stream} is not whole"
            name = min(info["replicas"], key=lambda replica: (replica not in victims, replica))
            if fault.role == "all":
                for each in self.cluster.nodes:
                    self.cluster.pause(each)  # nobody hears of another's death
                for each in self.cluster.nodes:
                    await self.cluster.kill(each)
            else:
                await self.cluster.kill(name)
                if waiting := await self._dependent(name, stream):
                    return f"skipped: killed {name}, on which still depends {waiting}"
            shutil.rmtree(directories(self.cluster, stream)[name])
        await self._start(name, fault)
        return f"{stream} on {name}{', all were killed' if fault.role == 'all' else ''}"

    async def _all_is_whole(self) -> bool:
        found = await problems_of_recovery(
            self.client, self.streams, whole_seconds(self.administrator.recorder.acked)
        )
        self.problems += found or await problems_of_voters(self.cluster)
        return not self.problems

    async def _rows(self) -> list[dict[str, Any]]:
        answer = await asked(self.client, "stream.list", internal=True, limit=_PAGE)
        return list(answer.get("streams", ()))

    async def _dependent(self, name: str, stream: str = "") -> list[str]:
        """Wait until all streams, or one, go on without the node; return those that do not."""
        found = [""]
        try:
            async with asyncio.timeout(_OUT_SECONDS):
                while found := await self._dependent_now(name, stream):
                    await passes(0.05, asyncio.Event())
        except TimeoutError:
            pass
        return found

    async def _dependent_now(self, name: str, stream: str) -> list[str]:
        nodes = (await asked(self.client, "cluster.info")).get("nodes", ())
        if not any(node["id"] == name and node["alive"] is False for node in nodes):
            return ["its lease"]
        rows = [row for row in await self._rows() if stream in ("", row["name"])]
        lacking = [row["name"] for row in rows if row["leader"] in (name, None)]
        return lacking if rows else ["unknown"]

    async def _start(self, name: str, fault: Fault) -> None:
        """Start it at once, every other time; else when all is mended."""
        if fault.after_acks < 50:
            await self.cluster.start(name)

    # --- clocks and descriptors -------------------------------------------------------------------

    async def _clock(self, victims: list[str], fault: Fault) -> str:
        ahead_s = 10 ** (_DECADES * fault.number) * (-1 if fault.shape in ("deaf", "dumb") else 1)
        for name in victims:
            self.cluster.move_clock(name, ahead_s)
        return f"{' '.join(victims)} by {ahead_s:.0f} s"

    async def _descriptors(self, victims: list[str], fault: Fault) -> str:
        few = int(fault.number * _FEW_MAX)
        limited = [name for name in victims if self.cluster.limit_descriptors(name, few)]
        return f"{' '.join(limited)} can open {few} more" if limited else "skipped: nobody runs"
