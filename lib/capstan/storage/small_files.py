"""Small data files in an object store, fetched once by a process.

Reading a Parquet file takes a request for its size, one for its footer and one for each column. The
ledgers and indexes have many small files, and one run reads them many times. Delta never changes a
data file, and no other file ever has its name, so its content can be kept.
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
    _buffers: OrderedDict[str, pa.Buffer] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, path: str) -> pa.Buffer | None:
        with self._lock:
            if path in self._buffers:
                self._buffers.move_to_end(path)
            return self._buffers.get(path)

    def put(self, path: str, content: pa.Buffer) -> None:
        with self._lock:
            # Two threads may have fetched the same file.
            if path not in self._buffers:
                self._buffers[path] = content
                self.size += content.size
            while self.size > _CAPACITY:
                _, dropped = self._buffers.popitem(last=False)
                self.size -= dropped.size


_contents = _Contents()


def folder(path: str) -> fs.FileSystem:
    """The folder of a table as a separate file system, to open its data files."""
    if not lake.is_stored(path):
        return lake.folder(path)
    return fs.PyFileSystem(_DataFiles(path))


def open_file(path: str) -> pa.NativeFile:
    """Open a data file of a table for random access.

    Args:
        path: The file; `.parquet`, and named by Delta.

    Raises:
        OSError: When it does not exist or cannot be read.
    """
    if not lake.is_stored(path):
        return lake.open_file(path)
    content = _contents.get(path)
    if content is None:
        file = lake.open_file(path)
        if file.size() > _LARGEST:
            return file
        # This buffer belongs to Arrow, whose threads may drop it when the interpreter has ended.
        content = file.read_buffer()
        _contents.put(path, content)
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
