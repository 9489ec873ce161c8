"""Delta logs in an object store; a subtree stands for the store, as it is no local file system."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs

from capstan.storage import stored_log
from capstan.storage.stored_log import is_log, newest_commit


class Counted:
    """A file system that counts what it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.filesystem = fs.SubTreeFileSystem(str(folder), fs.LocalFileSystem())
        self.looks = 0

    def open_input_stream(self, path: str) -> Any:
        self.looks += 1
        return self.filesystem.open_input_stream(path)


def add(folder: Path, versions: range, checkpoint: str | None = None) -> None:
    (folder / "log").mkdir(exist_ok=True)
    for version in versions:
        (folder / "log" / f"{version:020}.json").touch()
    if checkpoint is not None:
        (folder / "log" / "_last_checkpoint").write_text(checkpoint)


@pytest.fixture(autouse=True)
def unseen() -> None:
    stored_log._seen.clear()


def newest(store: Counted) -> int | None:
    actual = newest_commit(cast(Any, store), "log")
    return None if actual is None else int(actual.partition(".json ")[0])


@given(checkpoint=st.integers(0, 40), since=st.integers(0, 70), later=st.integers(0, 9))
def test_the_newest_commit_is_found_in_few_looks(
    tmp_path_factory: pytest.TempPathFactory, checkpoint: int, since: int, later: int
) -> None:
    stored_log._seen.clear()
    folder = tmp_path_factory.mktemp("store")
    # A clean-up may have deleted everything before the checkpoint.
    end = checkpoint + since + 1
    add(
        folder,
        range(checkpoint, end),
        f'{{"version": {checkpoint}, "size": 3}}' if checkpoint else None,
    )
    store = Counted(folder)
    assert newest(store) == end - 1
    assert store.looks <= 3 + 2 * end.bit_length()
    assert is_log(cast(Any, store), "log")
    # The next look begins where this one ended.
    add(folder, range(end, end + later))
    store.looks = 0
    assert newest(store) == end - 1 + later
    assert store.looks <= 2 + 2 * later.bit_length()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"version": null}', '"text"'])
def test_a_damaged_pointer_is_done_without(tmp_path: Path, text: str) -> None:
    add(tmp_path, range(3), text)
    assert newest(Counted(tmp_path)) == 2


def test_what_begins_nowhere_that_is_known_is_left_to_a_listing(tmp_path: Path) -> None:
    store = Counted(tmp_path)
    assert newest(store) is None
    assert not is_log(cast(Any, store), "log")
    add(tmp_path, range(3, 5))
    assert newest(store) is None
    assert not is_log(cast(Any, store), "log")


def test_a_log_that_begins_again_is_read_from_its_start(tmp_path: Path) -> None:
    add(tmp_path, range(9))
    assert newest(Counted(tmp_path)) == 8
    for entry in (tmp_path / "log").iterdir():
        entry.unlink()
    add(tmp_path, range(2))
    assert is_log(cast(Any, Counted(tmp_path)), "log")
    assert newest(Counted(tmp_path)) == 1
