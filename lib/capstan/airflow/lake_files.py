"""Small text files in the lake, through which Airflow's components share labels and declarations.

DAG files are parsed often: nothing here opens a table, and only a lake in an object store loads
pyarrow.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from capstan.errors import CapstanError
from capstan.spark.project_home import replacing


def read_lake_file(lake: str, name: str) -> str | None:
    """The text of a file at the top of the lake; None if it cannot be read."""
    try:
        if "://" in lake:
            from capstan.storage.lake import read_text

            return read_text(f"{lake}/{name}")
        return Path(lake, name).read_text(encoding="utf-8")
    except (OSError, ValueError, CapstanError):
        return None


def write_lake_file(lake: str, name: str, text: str) -> None:
    """Write a file at the top of the lake, atomically; a failure to write is ignored."""
    with suppress(OSError, CapstanError):
        if "://" in lake:
            from capstan.storage.lake import write_text

            write_text(f"{lake}/{name}", text)
            return
        with replacing(Path(lake, name)) as unfinished:
            unfinished.write_text(text, encoding="utf-8")
