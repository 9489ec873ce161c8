"""Small data files in an object store, fetched once by a process.

Reading a Parquet file takes a request for its size, one for its footer and one for each column. The
ledgers and indexes have many small files, and one run reads them many times. Delta never changes a
data file, and no other file ever has its name, so its content can be kept. A file may be lost in
the store nevertheless: deep verifications and audits first have each asked for again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field

import pyarrow as pa
from pyarrow import fs

from capstan.storage import lake

_LARGEST = 1 << 20
"""Size in bytes of the largest file that is kept."""

_CAPACITY = 64 << 20


@dataclass(slots=True)
class _Contents:
    """The content of files by path, of those that were used last."""

    size: int = 0
    _seen: set[str] = field(default_factory=set)
    _buffers: OrderedDict[str, tuple[object, pa.Buffer]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, path: str, tag: object = None) -> pa.Buffer | None:
        """The content of a file that was seen in the store, with a tag that is as it was."""
        with self._lock:
            known, content = self._buffers.get(path, (None, None))
            if content is None or not (path in self._seen or tag == known):
                return None
            self._seen.add(path)
            self._buffers.move_to_end(path)
            return content

    def put(self, path: str, tag: object, content: pa.Buffer) -> None:
        with self._lock:
            _, before = self._buffers.pop(path, (None, None))
            self.size += content.size - (0 if before is None else before.size)
            self._buffers[path] = tag, content
            self._seen.add(path)
            while self.size > _CAPACITY:
                _, (_, dropped) = self._buffers.popitem(last=False)
                self.size -= dropped.size

    def doubt(self) -> None:
        with self._lock:
            self._seen.clear()


_contents = _Contents()


def look_again() -> None:
    """Ask the store once for each kept file before it is used again: it may be gone."""
    _contents.doubt()


def folder(path: str) -> fs.FileSystem:
    """The folder of a table as a separate file system, to open its data files."""
    if not lake.is_stored(path):
        return lake.folder(path)
    return fs.PyFileSystem(_DataFiles(path))


def open_file(path: str) -> pa.NativeFile:
    """Open a data file of a table, `.parquet` and named by Delta, for random access."""
    if not lake.is_stored(path):
        return lake.open_file(path)
    content = _contents.get(path)
    if content is None:
        file = lake.open_file(path)
        if file.size() > _LARGEST:
            return file
        tag = file.size(), (file.metadata() or {}).get(b"ETag")
        content = _contents.get(path, tag)
    if content is None:
        # This buffer belongs to Arrow, whose threads may drop it when the interpreter has ended.
        content = file.read_buffer()
        _contents.put(path, tag, content)
    return pa.BufferReader(content)


class _DataFiles(fs.FileSystemHandler):  # type: ignore[misc]
    """What a dataset uses of a file system: it opens files."""

    def __init__(self, root: str) -> None:
        self.root = root

    def open_input_file(self, path: str) -> pa.NativeFile:
        return open_file(f"{self.root}/{path}")

    def get_type_name(self) -> str:
        return "data files of a Delta table"

    def normalize_path(self, path: str) -> str:
        return path

    def _unused(self, *_: object, **__: object) -> None:
        raise NotImplementedError

    get_file_info = get_file_info_selector = open_input_stream = _unused
    open_output_stream = open_append_stream = create_dir = copy_file = move = _unused
    delete_file = delete_dir = delete_dir_contents = delete_root_dir_contents = _unused
