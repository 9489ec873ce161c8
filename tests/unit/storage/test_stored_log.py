"""Delta logs in an object store; a subtree stands for the store, as it is no local file system."""

from __future__ import annotations

from contextlib import nullcontext
from contextvars import Context, copy_context
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import example, given
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


class Shared:
    """Logs that several writers change, as a store shows them."""

    def __init__(self) -> None:
        self.versions: dict[str, int] = {}
        self.looks = 0

    def open_input_stream(self, path: str) -> Any:
        self.looks += 1
        log, _, name = path.partition("/")
        number = name.partition(".")[0]
        if not number.isdecimal() or int(number) >= self.versions.get(log, 0):
            raise FileNotFoundError(path)
        return nullcontext(self)

    def metadata(self) -> dict[bytes, bytes]:
        return {}

    def newest(self, log: str) -> int:
        """The number of commits of a log, looked at as callers do."""
        store = cast(Any, self)
        if not is_log(store, log):
            return 0
        return int((newest_commit(store, log) or "").partition(".json")[0]) + 1


LOGS = st.sampled_from("abc")
STEPS = st.tuples(st.sampled_from(["write", "look", "look", "look", "again"]), LOGS)


@given(st.lists(STEPS, max_size=60))
@example([("look", "a"), ("write", "a"), ("write", "b"), ("look", "b"), ("look", "a")])
def test_a_look_shows_what_was_written_before_what_others_have_shown(
    steps: list[tuple[str, str]],
) -> None:
    stored_log._seen.clear()
    store, least = Shared(), 0
    moments: list[dict[str, int]] = [{}]
    with stored_log.remembering():
        for step, log in steps:
            if step == "write":
                store.versions[log] = store.versions.get(log, 0) + 1
                moments.append(dict(store.versions))
            elif step == "again":
                stored_log.look_again()
                least = len(moments) - 1
            else:
                shown = store.newest(log)
                assert shown >= moments[least].get(log, 0)
                written = next(n for n, m in enumerate(moments) if m.get(log, 0) == shown)
                least = max(least, written)


def test_a_look_is_not_repeated_until_something_is_new() -> None:
    store = Shared()
    store.versions = {"a": 1, "b": 3}
    with stored_log.remembering():
        assert [store.newest(log) for log in "abab"] == [1, 3, 1, 3]
        store.looks = 0
        assert [store.newest(log) for log in "abab"] == [1, 3, 1, 3]
        assert store.looks == 0
        # Nobody has told of this commit yet.
        store.versions["a"] = 2
        assert store.newest("a") == 1
        store.versions["c"] = 1
        assert [store.newest(log) for log in "ca"] == [1, 2]
        store.versions["b"] = 4
        stored_log.look_again()
        assert store.newest("b") == 4
    store.versions["b"] = 5
    assert store.newest("b") == 5


def test_a_commit_of_one_s_own_is_a_look_at_its_log_alone() -> None:
    store = Shared()
    store.versions = {"a": 1, "b": 1}
    with stored_log.remembering():
        assert [store.newest(log) for log in "ab"] == [1, 1]
        with stored_log.own_commit():
            store.versions["a"] = 2
        store.looks = 0
        assert newest_commit(cast(Any, store), "a", 1) is not None
        assert (store.newest("a"), store.looks) == (2, 1)
        # The other log is looked at again, and what is found there is newer than the commit.
        store.versions["b"], store.versions["a"] = 2, 3
        assert [store.newest(log) for log in "ba"] == [2, 3]
        with stored_log.own_commit():
            store.versions["c"] = 1
        store.versions["a"] = 4
        assert store.newest("a") == 4


def test_what_others_have_seen_since_a_commit_is_newer_than_the_commit() -> None:
    store = Shared()
    store.versions = {"a": 1, "b": 1}
    with stored_log.remembering():
        assert [store.newest(log) for log in "ab"] == [1, 1]
        with stored_log.own_commit():
            store.versions["a"] = 2
        store.versions["a"] = 3
        store.versions["b"] = 2
        assert Context().run(store.newest, "b") == 2
        assert newest_commit(cast(Any, store), "a", 1) is not None
        assert [store.newest(log) for log in "ba"] == [2, 3]


def test_a_log_that_was_absent_is_looked_for_at_its_first_commit() -> None:
    store = Shared()
    with stored_log.remembering():
        assert (store.newest("a"), store.looks) == (0, 2)
        stored_log.look_again()
        assert (store.newest("a"), store.looks) == (0, 3)
        store.versions["a"] = 1
        stored_log.look_again()
        assert store.newest("a") == 1


def test_a_look_that_another_thread_has_outrun_is_repeated() -> None:
    class Outrun(Shared):
        """A store where a look at `a` takes until others have written, and been looked at."""

        def open_input_stream(self, path: str) -> Any:
            if path.startswith("a/") and stored_log._looks.get() and "b" not in self.versions:
                try:
                    return super().open_input_stream(path)
                except FileNotFoundError:
                    self.versions |= {"a": 2, "b": 1}
                    assert copy_context().run(self.newest, "b") == 1
                    raise
            return super().open_input_stream(path)

    store = Outrun()
    store.versions = {"a": 1}
    assert store.newest("a") == 1
    with stored_log.remembering():
        assert store.newest("a") in (1, 2)
        assert (store.newest("b"), store.newest("a")) == (1, 2)
