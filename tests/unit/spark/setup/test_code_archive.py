"""The code that executors get: whole, compiled, named by what is in it."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from capstan.spark.setup import code_archive as shipping
from capstan.spark.setup.code_archive import code_archive


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package in place of Capstan's own, and a project's folder."""
    folder = tmp_path / "lib" / "capstan"
    (folder / "room").mkdir(parents=True)
    (folder / "__init__.py").write_text("", encoding="utf-8")
    (folder / "room" / "__init__.py").write_text("from capstan.room.a import A\n")
    (folder / "room" / "a.py").write_text("A = 1\n", encoding="utf-8")
    monkeypatch.setattr(shipping, "_PACKAGE", folder)
    monkeypatch.setenv("CAPSTAN_HOME", str(tmp_path))
    return folder


def told(archive, code):
    """What a Python prints that has Capstan from the archive alone, in another time zone."""
    command = [sys.executable, "-I", "-c", f"import sys; sys.path[:1] = [{str(archive)!r}]; {code}"]
    elsewhere = {**os.environ, "TZ": "Asia/Tokyo"}
    done = subprocess.run(command, env=elsewhere, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_modules_are_imported_from_it_as_they_were_compiled(package):
    archive = code_archive()
    assert told(archive, "from capstan.room import A; print(A)") == "1"
    where = told(archive, "import capstan.room.a as a; print(a.__file__)")
    assert where == f"{archive}/capstan/room/a.pyc"


def test_it_is_made_once_for_the_same_code(package):
    first = code_archive()
    made = first.stat().st_mtime_ns
    assert (code_archive(), first.stat().st_mtime_ns) == (first, made)
    (package / "room" / "a.py").write_text("A = 2\n", encoding="utf-8")
    second = code_archive()
    assert second != first
    assert told(second, "from capstan.room import A; print(A)") == "2"
    # Who began with the first one still hands it out.
    assert first.is_file()
    assert [path.suffix for path in first.parent.iterdir()] == [".zip", ".zip"]


def test_where_the_project_cannot_be_written_it_lies_elsewhere(package, tmp_path, monkeypatch):
    (tmp_path / "home").write_text("a file, below which nothing can be made", encoding="utf-8")
    monkeypatch.setenv("CAPSTAN_HOME", str(tmp_path / "home"))
    archive = code_archive()
    assert archive.parent.stat().st_mode & 0o777 == 0o700
    assert told(archive, "from capstan.room import A; print(A)") == "1"


def test_all_of_capstan_is_in_it():
    package = Path(shipping.__file__).parents[2]
    sources = {f"capstan/{path.relative_to(package)}" for path in package.rglob("*.py")}
    with zipfile.ZipFile(code_archive()) as file:
        names = set(file.namelist())
    stubs = {f"capstan/{path.relative_to(package)}" for path in package.rglob("*.pyi")}
    assert names == sources | {f"{name}c" for name in sources} | stubs
    assert "capstan/__init__.pyi" in stubs
    assert told(code_archive(), "import capstan; print(capstan.CapstanError.__name__)") == (
        "CapstanError"
    )
