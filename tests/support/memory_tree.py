"""The tree of a `MemoryDisk`: cached and durable content, and what a power loss makes of them."""

import random
from collections.abc import Callable, Iterator
from typing import Final

from envelope.errors import StorageError
from jetstream.log.disk.port import parent_of

SECTOR_BYTES: Final = 512
"""Writes reach the medium in pieces that end at multiples of this."""

Survival = Callable[[int], int]
"""Asked for each unsynced piece (a sector or part of one, a truncation, an entry): given the number of its
bytes (1 for a truncation or an entry), how many of them, from its start, reached the medium."""


def nothing_survives(length: int) -> int:
    """Lose everything that was not synced."""
    return 0


def everything_survives(length: int) -> int:
    """Keep everything, as when only the process was killed."""
    return length


def random_survival(seed: int) -> Survival:
    """Keep about half of the pieces; one in eight is torn."""
    chance = random.Random(seed)  # reproducible on purpose

    def survive(length: int) -> int:
        if chance.random() < 0.125:
            return chance.randrange(length + 1)
        return chance.choice((0, length))

    return survive


class FileNode:
    """Content of a file: what programs see, what the medium holds, and what lies between."""

    __slots__ = ("cached", "durable", "modified_at", "pending")

    def __init__(self, content: bytes = b"") -> None:
        """Begin with durable ``content``."""
        self.cached = bytearray(content)
        self.durable = bytearray(content)
        self.pending: list[tuple[int, bytes] | int] = []
        """Unsynced writes (position, data) and truncations (size), in order."""
        self.modified_at = 1 << 62

    def write(self, position: int, data: bytes) -> None:
        """Change what programs see."""
        _put(self.cached, position, data)
        self.pending.append((position, data))

    def truncate(self, size: int) -> None:
        """Cut, or extend with zeros, what programs see."""
        _resize(self.cached, size)
        self.pending.append(size)

    def sync(self) -> None:
        """Make what programs see durable."""
        for change in self.pending:
            if isinstance(change, int):
                _resize(self.durable, change)
            else:
                _put(self.durable, *change)
        self.pending.clear()

    def fail_sync(self) -> None:
        """Mark everything clean without writing it."""
        self.pending.clear()

    def drop_cache(self, position: int) -> None:
        """Show what the medium would hold from ``position`` on, keeping the length."""
        seen = self.after_power_loss(everything_survives)
        _resize(seen, len(self.cached))
        self.cached[position:] = seen[position:]

    def after_power_loss(self, survive: Survival) -> bytearray:
        """Return what the medium holds when the machine starts again."""
        content = bytearray(self.durable)
        for change in self.pending:
            if isinstance(change, int):
                if survive(1):
                    _resize(content, change)
                continue
            position, data = change
            if position + len(data) > len(content) and survive(1):
                _resize(content, position + len(data))
            for start, piece in _sectors(position, data):
                kept = survive(len(piece))
                if kept:
                    _put(content, start, piece[:kept])
        return content


class FileMove:
    """A file goes from one directory to another: unsynced, that happens in both or in neither."""

    __slots__ = ()


class PowerLoss:
    """One loss of power: what survived it, so that nothing is asked twice.

    Attributes:
        survive: decides.
        copies: of files that several entries name, by the identity of the node.
    """

    __slots__ = ("_moves", "copies", "survive")

    def __init__(self, survive: Survival) -> None:
        """Nothing is decided yet."""
        self.survive = survive
        self.copies: dict[int, FileNode] = {}
        self._moves: dict[int, int] = {}

    def keeps(self, move: FileMove | None) -> bool:
        """Tell whether a change of a directory, or the move that it belongs to, reached the medium."""
        if move is None:
            return bool(self.survive(1))
        if id(move) not in self._moves:
            self._moves[id(move)] = self.survive(1)
        return bool(self._moves[id(move)])


class DirectoryNode:
    """Entries of a directory, likewise."""

    __slots__ = ("cached", "durable", "pending")

    def __init__(self) -> None:
        """Begin empty."""
        self.cached: dict[str, FileNode | DirectoryNode] = {}
        self.durable: dict[str, FileNode | DirectoryNode] = {}
        self.pending: list[tuple[dict[str, FileNode | DirectoryNode | None], FileMove | None]] = []
        """Unsynced changes, in order; each happens as a whole: names and what they now mean."""

    def change(
        self, names: "dict[str, FileNode | DirectoryNode | None]", move: FileMove | None = None
    ) -> None:
        """Change what programs see: names and what they now mean; a ``move`` is of two directories."""
        _apply(self.cached, names)
        self.pending.append((names, move))

    def sync(self) -> None:
        """Make what programs see durable."""
        self.durable = dict(self.cached)
        self.pending.clear()

    def after_power_loss(self, loss: PowerLoss) -> "DirectoryNode":
        """Return what the medium holds when the machine starts again."""
        entries = dict(self.durable)
        for names, move in self.pending:
            if loss.keeps(move):
                _apply(entries, names)
        found = DirectoryNode()
        for name, node in entries.items():
            if isinstance(node, DirectoryNode):
                found.cached[name] = node.after_power_loss(loss)
            else:
                if id(node) not in loss.copies:
                    loss.copies[id(node)] = FileNode(bytes(node.after_power_loss(loss.survive)))
                found.cached[name] = loss.copies[id(node)]
        found.sync()
        return found


def find(root: DirectoryNode, path: str) -> FileNode | DirectoryNode | None:
    """Return what is at ``path`` now."""
    node: FileNode | DirectoryNode | None = root
    for name in path.split("/") if path else ():
        if not isinstance(node, DirectoryNode):
            return None
        node = node.cached.get(name)
    return node


def file_at(root: DirectoryNode, path: str) -> FileNode:
    """Return the file at ``path`` or raise StorageError."""
    node = find(root, path)
    if not isinstance(node, FileNode):
        raise StorageError(f"cannot open {path}: there is no such file")
    return node


def directory_at(root: DirectoryNode, path: str) -> DirectoryNode:
    """Return the directory at ``path`` or raise StorageError."""
    node = find(root, path)
    if not isinstance(node, DirectoryNode):
        raise StorageError(f"cannot open {path}: there is no such directory")
    return node


def parent_at(root: DirectoryNode, path: str) -> tuple[DirectoryNode, str]:
    """Return the directory that holds ``path``, and the name in it; or raise StorageError."""
    return directory_at(root, parent_of(path)), path.rpartition("/")[2]


def move_entry(source: DirectoryNode, name: str, target: DirectoryNode, new_name: str) -> None:
    """Move an entry to another directory."""
    move, node = FileMove(), source.cached[name]
    source.change({name: None}, move)
    target.change({new_name: node}, move)


def all_nodes(root: DirectoryNode) -> Iterator[FileNode | DirectoryNode]:
    """Yield everything in the tree."""
    yield root
    for node in root.cached.values():
        if isinstance(node, DirectoryNode):
            yield from all_nodes(node)
        else:
            yield node


def _apply(
    entries: dict[str, FileNode | DirectoryNode], names: dict[str, FileNode | DirectoryNode | None]
) -> None:
    for name, node in names.items():
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


def _sectors(position: int, data: bytes) -> Iterator[tuple[int, bytes]]:
    """Cut a write where sectors of the medium end."""
    start = 0
    while start < len(data):
        end = start + SECTOR_BYTES - (position + start) % SECTOR_BYTES
        yield position + start, data[start:end]
        start = end


def _put(content: bytearray, position: int, data: bytes) -> None:
    if position > len(content):
        _resize(content, position)
    content[position : position + len(data)] = data


def _resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))
