"""Capstan's own code as one file that a Spark cluster ships to its executors.

Tasks therefore always run the driver's code, whatever is installed on the executors. These need
only the packages of `requirements.lock`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import py_compile
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from capstan.spark.project_home import cache_folder, process_folder, replacing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ADDED: set[tuple[str, Path]] = set()
_PACKAGE = Path(__file__).resolve().parents[2]


def code_archive() -> Path:
    """The archive of the current code; created if it does not exist."""
    # It has each module as bytecode for this Python and as source for other versions. Its name is a
    # hash of the content. It is in the cache folder, or a temporary one if that cannot be written.
    sources = _sources()
    name = f"capstan-{_digest(sources)}.zip"
    cached = cache_folder() / "code" / name
    if cached.is_file():
        return cached
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        _make(cached, sources)
    except OSError:
        return _make(process_folder("code") / name, sources)
    # Older archives are kept: a running job ships its archive to executors that join later.
    return cached


def add_modules(spark: SparkSession, modules: Iterable[Path]) -> None:
    """Let Python tasks import files and package folders that are installed nowhere."""
    for module in modules:
        context = spark.sparkContext
        if (context.applicationId, module) not in _ADDED:
            context.addPyFile(str(module if module.is_file() else _packed(module)))
            _ADDED.add((context.applicationId, module))


def _packed(package: Path) -> str:
    base = process_folder("code") / package.name
    return shutil.make_archive(str(base), "zip", package.parent, package.name)


def _sources() -> dict[str, Path]:
    """The modules by their path in the archive."""
    return {
        f"{_PACKAGE.name}/{path.relative_to(_PACKAGE)}": path
        for path in sorted(_PACKAGE.rglob("*.py*"))
        if path.suffix in (".py", ".pyi")
    }


def _digest(sources: Mapping[str, Path]) -> str:
    digest = hashlib.sha256(importlib.util.MAGIC_NUMBER)
    for name, path in sources.items():
        source = path.read_bytes()
        digest.update(f"{name}:{len(source)}:".encode() + source)
    return digest.hexdigest()[:16]


def _make(archive: Path, sources: Mapping[str, Path]) -> Path:
    with (
        replacing(archive) as unfinished,
        tempfile.TemporaryDirectory(prefix="capstan-code-") as folder,
        zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED) as file,
    ):
        compiled = Path(folder) / "module.pyc"
        for name, path in sources.items():
            file.write(path, name)
            if path.suffix != ".py":
                continue
            py_compile.compile(
                str(path),
                str(compiled),
                name,
                doraise=True,
                # A zip has local times: in another zone it could be older than its source.
                invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
            )
            file.write(compiled, f"{name}c")
    return archive


if __name__ == "__main__":
    sys.exit(print(code_archive()))
