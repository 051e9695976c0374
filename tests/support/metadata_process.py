"""A member of a metadata group as a process of its own, to be killed: its state machine keeps words.

    python -m tests.support.metadata_process '{"name": …, "root": …, "voters": {name: port}, "control": port}'

On the control port each line is a request in JSON and has one line for an answer:

    {"propose": word}   {"applied": true}, or {"refused": true}: it may be applied or not, ask anybody again
    {"words": index}    {"words": […], "index": …, "state": …} once that index is applied
    {"read": true}      {"index": …}: all that was committed before, or {"refused": true}
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from envelope.errors import NotLeader, Overloaded
from envelope.types import LogIndex, NodeId
from jetstream.log.disk.os_disk import OsDisk
from metadata.node.members.voting_member import VotingMember
from metadata.node.peers.dialling import Address
from metadata.node.storage.file_storage import FileStorage
from metadata.node.voter.voter import Voter
from tests.support.metadata_members import Words, founder, listening, named

LOOPBACK = "127.0.0.1"
SNAPSHOT_LOG_BYTES_MIN = 20_000
"""Small, so that snapshots are taken, sent and found at a restart many times in a short run."""


class Process:
    """Answers requests from the member it runs."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._moved: asyncio.Event = asyncio.Event()
        storage = FileStorage.open(OsDisk(Path(settings["root"])), "metadata")
        self._words = Words(storage.load().snapshot, self._move)
        voters = {NodeId(name): Address(LOOPBACK, port) for name, port in settings["voters"].items()}
        self._member = founder(NodeId(settings["name"]), voters, storage, self._words, SNAPSHOT_LOG_BYTES_MIN)

    @property
    def _voter(self) -> Voter:
        assert isinstance(self._member.part, VotingMember), "a founder has a vote"
        return self._member.part.voter

    def _move(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()

    async def run(self, settings: dict[str, Any]) -> None:
        own = listening(Address(LOOPBACK, settings["voters"][settings["name"]]))
        control = listening(Address(LOOPBACK, settings["control"]))
        server = await asyncio.start_server(self._serve, sock=control, limit=1 << 24)
        async with server, asyncio.TaskGroup() as tasks:
            tasks.create_task(self._member.run(own))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            try:
                answer = await self._answer(json.loads(line))
            except (NotLeader, Overloaded):
                answer = {"refused": True}
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        writer.close()

    async def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        voter = self._voter
        match request:
            case {"propose": str(word)}:
                return await self._propose(word.encode())
            case {"read": True}:
                return {"index": await voter.read()}
            case {"words": int(index)}:
                while self._words.index < index:
                    await self._moved.wait()
                words = [word.decode() for word in self._words.words]
                return {"words": words, "index": self._words.index, "state": str(voter)}
            case _:
                raise ValueError(f"no request: {request}")

    async def _propose(self, word: bytes) -> dict[str, Any]:
        voter = self._voter
        index: LogIndex = voter.propose((named(word),)).first
        term = voter.term
        while self._words.index < index and voter.term == term and voter.leader is not None:
            await self._moved.wait()
        return {"applied": True} if self._words.has(word) else {"refused": True}


def main() -> None:
    """Run until killed."""
    settings = json.loads(sys.argv[1])

    async def run() -> None:
        await Process(settings).run(settings)

    asyncio.run(run())


if __name__ == "__main__":
    main()
