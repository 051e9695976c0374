"""An object store in memory that fails on request, behind a real `pyarrow.fs` filesystem."""

import io
import threading
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.fs as pafs

from jetstream.tier.object_store import ObjectStore

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class StoreFault(Enum):
    """What becomes of a call."""

    REFUSED = "refused"
    """It fails, and nothing has happened."""
    LATE = "late"
    """It happens, and the answer is an error."""
    HALF = "half"
    """Half of what is written is stored, then it fails; other calls are refused."""
    SILENT = "silent"
    """Half of what is written is stored, and it says that all is; other calls are refused."""
    WRONG = "wrong"
    """What is read has one bit changed; other calls are refused."""
    DOWN = "down"
    """It fails, and so does every later one."""


@dataclass
class MemoryStore(pafs.FileSystemHandler):
    """Objects by path; calls are numbered from 1, and a fault strikes the call of its number."""

    objects: dict[str, bytes] = field(default_factory=dict)
    faults: dict[int, StoreFault] = field(default_factory=dict)
    trace: list[str] = field(default_factory=list)
    is_down: bool = False
    keeps_all: bool = False
    """Nothing is deleted while it is so."""

    @property
    def store(self) -> ObjectStore:
        return ObjectStore(pafs.PyFileSystem(self), "bucket")

    def call(self, name: str, path: str) -> StoreFault | None:
        """Count a call; raise if it is to fail before it happens, return how it fails after it has."""
        self.trace.append(f"{name} {path}")
        fault = self.faults.get(len(self.trace))
        self.is_down = self.is_down or fault is StoreFault.DOWN
        if self.is_down or fault is StoreFault.REFUSED:
            raise OSError(f"{name}: no answer")
        struck = {StoreFault.HALF: "write", StoreFault.SILENT: "write", StoreFault.WRONG: "read"}
        if fault is not None and struck.get(fault, name) != name:
            raise OSError(f"{name}: refused")
        return fault

    def after(self, fault: StoreFault | None) -> None:
        """Raise if the call's answer is lost."""
        if fault is StoreFault.LATE:
            raise OSError("the answer is lost")

    # --- what pyarrow calls -------------------------------------------------------------------------

    def get_type_name(self) -> str:
        return "memory"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: str | list[str]) -> list[pafs.FileInfo]:
        assert isinstance(paths, list)
        fault = self.call("info", paths[0])
        self.after(fault)
        return [self._info(path) for path in paths]

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        fault = self.call("list", selector.base_dir)
        self.after(fault)
        start = selector.base_dir + "/"
        inside = [path for path in self.objects if path.startswith(start)]
        if not selector.recursive:
            inside = sorted({start + path.removeprefix(start).partition("/")[0] for path in inside})
        return [self._info(path) for path in inside]

    def _info(self, path: str) -> pafs.FileInfo:
        if path in self.objects:
            return pafs.FileInfo(path, pafs.FileType.File, size=len(self.objects[path]))
        is_directory = any(other.startswith(path + "/") for other in self.objects)
        return pafs.FileInfo(path, pafs.FileType.Directory if is_directory else pafs.FileType.NotFound)

    def create_dir(self, path: str, recursive: bool) -> None:
        assert recursive
        self.after(self.call("create_dir", path))

    def delete_file(self, path: str) -> None:
        fault = self.call("delete", path)
        if self.keeps_all:
            raise PermissionError(f"delete: {path} stays")
        if path not in self.objects:
            raise FileNotFoundError(path)
        del self.objects[path]
        self.after(fault)

    def delete_dir(self, path: str) -> None:
        fault = self.call("delete_dir", path)
        for inside in [other for other in self.objects if other.startswith(path + "/")]:
            del self.objects[inside]
        self.after(fault)

    def open_input_stream(self, path: str) -> pa.NativeFile:
        fault = self.call("read", path)
        if path not in self.objects:
            raise FileNotFoundError(path)
        content = self.objects[path]
        if fault is StoreFault.WRONG:
            middle = len(content) // 2
            content = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        self.after(fault)
        return pa.PythonFile(io.BytesIO(content), mode="r")

    def open_output_stream(self, path: str, metadata: object) -> pa.NativeFile:
        del metadata
        self.after(self.call("open", path))
        self.objects[path] = b""
        return pa.PythonFile(_Writing(self, path), mode="w")

    # --- what nothing here asks of a store ------------------------------------------------------------

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        raise NotImplementedError

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError

    def move(self, src: str, dest: str) -> None:
        raise NotImplementedError

    def copy_file(self, src: str, dest: str) -> None:
        raise NotImplementedError

    def open_input_file(self, path: str) -> pa.NativeFile:
        raise NotImplementedError

    def open_append_stream(self, path: str, metadata: object) -> pa.NativeFile:
        raise NotImplementedError


@dataclass
class _Writing(io.RawIOBase):
    store: MemoryStore
    path: str

    def writable(self) -> bool:
        return True

    def write(self, data: "ReadableBuffer") -> int:
        fault = self.store.call("write", self.path)
        content = bytes(data)
        kept = content[: len(content) // 2] if fault in (StoreFault.HALF, StoreFault.SILENT) else content
        self.store.objects[self.path] += kept
        if fault is StoreFault.HALF:
            raise OSError("the connection broke")
        self.store.after(fault)
        return len(content)


@dataclass
class HeldStore(MemoryStore):
    """A store in memory that does not answer a read while it is told to.

    Attributes:
        answers: set, it does.
        asked: how many reads it has been asked for.
    """

    answers: threading.Event = field(default_factory=threading.Event)
    asked: int = 0

    def __post_init__(self) -> None:
        self.answers.set()

    def open_input_stream(self, path: str) -> pa.NativeFile:
        self.asked += 1
        self.answers.wait()
        return super().open_input_stream(path)
