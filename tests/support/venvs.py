"""Virtual environments of other Python versions, with packages of the index."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


def new_venv(folder: Path, version: str, *packages: str) -> Path:
    """Create a virtual environment, and install packages; returns its folder of programs.

    Args:
        folder: Its folder.
        version: The version of Python, such as `3.12`.
        packages: Requirements, as pip takes them.

    Raises:
        AssertionError: When this machine has no such Python.
    """
    python = _interpreter(version)
    assert python is not None, f"install a Python {version}"
    subprocess.run([str(python), "-m", "venv", str(folder)], check=True, timeout=120)
    programs = folder / "bin"
    pip = [str(programs / "python"), "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, "--disable-pip-version-check", *packages], check=True, timeout=1800)
    return programs


def _interpreter(version: str) -> Path | None:
    """A Python of a version: on the path, or one that pyenv has."""
    on_path = shutil.which(f"python{version}")
    installed = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
    candidates = [*([Path(on_path)] if on_path else []), *reversed(installed)]
    return next((python for python in candidates if _runs(python)), None)


def _runs(python: Path) -> bool:
    """Whether it is an interpreter: pyenv's shim of a version that is not selected only fails."""
    return subprocess.run([str(python), "-c", ""], capture_output=True, check=False).returncode == 0
