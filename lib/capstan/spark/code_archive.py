"""Capstan's own code as one file that a Spark cluster hands to its executors.

So the code that runs in a task is always the driver's, whatever is installed where the executor
is: there, the packages of `requirements.lock` are enough.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib.util
import os
import py_compile
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from capstan.spark.project_home import cache_folder

_PACKAGE = Path(__file__).resolve().parents[1]


def code_archive() -> Path:
    """The archive of the present code, made where it is not there yet.

    It holds each module twice: compiled for this Python, and as its source for any other. Its name
    says what is in it. It lies in the folder that set-up fills; where that cannot be written, in
    one of this process, which is gone when the process ends.
    """
    sources = _sources()
    name = f"capstan-{_digest(sources)}.zip"
    kept = cache_folder() / "code" / name
    if kept.is_file():
        return kept
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        _make(kept, sources)
    except OSError:
        return _make(_own_folder() / name, sources)
    # Older ones stay: an app that began with one hands it to each executor that joins later.
    return kept


@cache
def _own_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="capstan-code-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _sources() -> dict[str, Path]:
    """The modules by their place in the archive."""
    return {
        f"{_PACKAGE.name}/{path.relative_to(_PACKAGE)}": path
        for path in sorted(_PACKAGE.rglob("*.py"))
    }


def _digest(sources: Mapping[str, Path]) -> str:
    found = hashlib.sha256(importlib.util.MAGIC_NUMBER)
    for name, path in sources.items():
        source = path.read_bytes()
        found.update(f"{name}:{len(source)}:".encode() + source)
    return found.hexdigest()[:16]


def _make(archive: Path, sources: Mapping[str, Path]) -> Path:
    unfinished = archive.with_name(f".{archive.name}.{os.getpid()}")
    try:
        with (
            tempfile.TemporaryDirectory(prefix="capstan-code-") as folder,
            zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED) as file,
        ):
            compiled = Path(folder) / "module.pyc"
            for name, path in sources.items():
                py_compile.compile(
                    str(path),
                    str(compiled),
                    name,
                    doraise=True,
                    # A zip has local times: in another zone it would be older than its source.
                    invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
                )
                file.write(path, name)
                file.write(compiled, f"{name}c")
        unfinished.replace(archive)
    finally:
        unfinished.unlink(missing_ok=True)
    return archive


if __name__ == "__main__":
    sys.exit(print(code_archive()))
