"""The checkout, if this is one; the cache folder of jars, Java and class archives; its files."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path


def checkout() -> Path | None:
    """The folder of the checkout that this package lies in; None when it was installed."""
    root = Path(__file__).resolve().parents[3]
    return root if (root / "Makefile").is_file() and (root / "lib" / "capstan").is_dir() else None


def project_home() -> Path:
    """The project's folder: `CAPSTAN_HOME`, else the checkout, else the working folder."""
    variable = os.environ.get("CAPSTAN_HOME")
    return Path(variable).absolute() if variable else checkout() or Path.cwd()


def set_up(connector: str = "") -> str:
    """The command that fetches missing jars: of the Makefile in a checkout, else of `capstan`.

    The connector is `kafka` or `s3`, or empty for what every session needs.
    """
    if checkout() is not None:
        return f"`make {connector or 'setup'}`"
    return f"`capstan setup {connector}`".replace(" `", "`")


def packages(extra: str) -> str:
    """How to install a missing package: set-up in a checkout, else the extra that brings it."""
    if checkout() is not None:
        return f"run {set_up()}"
    return f"run `pip install 'capstan-replay[{extra}]'`"


def cache_folder() -> Path:
    """The folder of jars, Java and class archives; it may not exist, and can be deleted any time.

    `CAPSTAN_CACHE`; else `.cache` in `CAPSTAN_HOME` or the checkout; else the user's cache folder.
    """
    variable = os.environ.get("CAPSTAN_CACHE")
    if variable:
        return Path(variable).absolute()
    if os.environ.get("CAPSTAN_HOME") or checkout() is not None:
        return project_home() / ".cache"
    # Not at the top: set-up runs this module before anything is installed.
    from platformdirs import user_cache_path

    return user_cache_path("capstan")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write; what is there at the end of the `with` block replaces `path` atomically."""
    # Spark ignores names that begin with a dot.
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield unfinished
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


@cache
def process_folder(name: str) -> Path:
    """A temporary folder of this process, `capstan-NAME-...`, deleted when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix=f"capstan-{name}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
