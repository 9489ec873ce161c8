"""Commits to a folder: one process after the other, whoever ends how."""

from __future__ import annotations

import errno
import fcntl
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from capstan.errors import RangeLockedError
from capstan.storage.delta.commit_lock import LOCK, committing, making

if TYPE_CHECKING:
    from pathlib import Path

# Reads, and writes what it makes of that: two at once would lose what the other has written.
COUNTING = """
import sys, time
from pathlib import Path
from capstan.storage.delta.commit_lock import committing
table = Path(sys.argv[1])
(table / sys.argv[2]).touch()
while len(list(table.glob("ready-*"))) < 2:
    time.sleep(0.001)
for _ in range(200):
    with committing(str(table)):
        count = int((table / "count").read_text())
        (table / "count").write_text(str(count + 1))
"""
HOLDING = """
import sys, time
from capstan.storage.delta.commit_lock import committing
with committing(sys.argv[1]):
    print("held", flush=True)
    time.sleep(600)
"""


def start(program: str, *arguments: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", program, *arguments]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def test_of_two_processes_none_takes_the_place_of_the_other(tmp_path: Path) -> None:
    (tmp_path / "count").write_text("0")
    both = [start(COUNTING, str(tmp_path), f"ready-{name}") for name in "ab"]
    assert [item.wait(120) for item in both] == [0, 0]
    assert (tmp_path / "count").read_text() == "400"


def test_threads_of_one_process_wait_for_each_other_too(tmp_path: Path) -> None:
    order = []
    with committing(str(tmp_path)):
        thread = threading.Thread(target=lambda: _note(tmp_path, order))
        thread.start()
        thread.join(0.2)
        order.append("first")
    thread.join(20)
    assert order == ["first", "second"]


def _note(folder: Path, order: list[str]) -> None:
    with committing(str(folder)):
        order.append("second")


def test_who_was_killed_holds_nothing_and_who_hangs_is_told_of(tmp_path: Path) -> None:
    table = tmp_path / "not" / "there"
    holder = start(HOLDING, str(table))
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(RangeLockedError) as caught, committing(str(table), timeout=0.1):
            raise AssertionError("two hold it")
    finally:
        holder.kill()
        holder.wait(20)
    assert caught.value.code == "CAP-CONFLICT"
    assert LOCK in caught.value.hint
    with committing(f"file://{table}", timeout=0.1):
        assert (table / LOCK).read_text() == ""


def test_an_object_store_is_not_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with committing("s3a://bucket/table"), committing("s3a://bucket/table", timeout=0):
        assert list(tmp_path.iterdir()) == []


def test_who_makes_a_table_is_alone_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "not" / "there"
    with making(str(table)):
        with pytest.raises(RangeLockedError) as caught, making(f"file://{table}", timeout=0.1):
            raise AssertionError("two make it")
        with committing(str(tmp_path / "another"), timeout=0.1):
            assert list(table.iterdir()) == []
    assert (caught.value.code, str(table) in caught.value.hint) == ("CAP-CONFLICT", True)
    with making("s3a://bucket/table"), making("s3a://bucket/table", timeout=0):
        pass

    def refuse(*_: object) -> None:
        raise OSError(code, "no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)
    code = errno.EBADF
    with making(str(table)):
        pass
    code = errno.EIO
    with pytest.raises(OSError, match="no locks"), making(str(table)):
        pass
