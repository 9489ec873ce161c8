"""Columns of all rows of a table, in batches of many."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs

from capstan.errors import SystemFailureError
from capstan.errors.translation import to_capstan_error
from capstan.storage.delta.arrow_scan import merge_batches, read_columns, rows_of
from capstan.storage.lake import Lake
from capstan.storage.tape import index
from capstan.storage.tape.tape import open_tape
from tests.support.jvmless_lake import lay_tape


@given(st.lists(st.integers(0, 7)), st.integers(1, 10))
def test_portions_have_the_same_rows_and_no_fewer_than_asked_for(
    sizes: list[int], rows: int
) -> None:
    numbers = iter(range(sum(sizes)))
    batches = [
        pa.RecordBatch.from_pydict(
            {"n": pa.array([next(numbers) for _ in range(size)], pa.int64())}
        )
        for size in sizes
    ]
    actual = list(merge_batches(batches, rows))
    assert [n for batch in actual for n in batch.column("n").to_pylist()] == list(range(sum(sizes)))
    assert all(batch.num_rows >= rows for batch in actual[:-1])
    assert all(batch.num_rows for batch in actual)


def test_a_column_that_a_file_lacks_is_null_there(tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    deltalake.write_deltalake(path, pa.table({"n": pa.array([1, 2], pa.int64())}))
    held = pa.list_(pa.struct([("time", pa.int64()), ("diff", pa.int64())]))
    later = pa.table({"n": pa.array([3], pa.int64()), "held": pa.array([[(1, 2)]], held)})
    deltalake.write_deltalake(path, later, mode="append", schema_mode="merge")
    rows = read_columns(path, ["held", "n"]).sort_by("n").to_pylist()
    assert rows == [
        {"held": None, "n": 1},
        {"held": None, "n": 2},
        {"held": [{"time": 1, "diff": 2}], "n": 3},
    ]
    assert read_columns(path, ["held"]).num_rows == 3


def test_arrow_opens_the_files_of_a_dataset_itself(tmp_path: Path) -> None:
    """A thread of its own that runs Python as the interpreter ends would end the process."""
    path = str(tmp_path / "a table")
    rows = pa.table({"a": [1, 2, 3], "w": ["a b", "x:y%z?", "é/ü"]})
    deltalake.write_deltalake(path, rows, partition_by=["w"])
    actual = rows_of(path)
    assert isinstance(actual.filesystem, fs.SubTreeFileSystem)
    assert isinstance(actual.filesystem.base_fs, fs.LocalFileSystem)
    assert actual.to_table().sort_by("a").to_pydict() == rows.to_pydict()


@pytest.mark.parametrize(
    "read", [lambda path: rows_of(path).to_table(), lambda path: read_columns(path, ["n"])]
)
@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda whole: b"", id="empty"),
        pytest.param(lambda whole: whole[:200], id="cut short"),
        pytest.param(lambda whole: whole[:100] + bytes(900) + whole[1000:], id="zeros in it"),
        pytest.param(lambda whole: b"rubbish " * 20, id="rubbish"),
        pytest.param(None, id="gone"),
    ],
)
def test_a_damaged_file_is_told_as_such(tmp_path: Path, read, damage) -> None:
    path = str(tmp_path / "table")
    deltalake.write_deltalake(path, pa.table({"n": list(range(1000))}))
    (file,) = Path(path).glob("*.parquet")
    if damage is None:
        file.unlink()
    else:
        file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(Exception) as caught:
        read(path)
    assert to_capstan_error(caught.value).code == "CAP-DAMAGED", caught.value
    with pytest.raises(SystemFailureError) as named:
        read_columns(path, ["n"])
    assert named.value.fields["path"] == str(file)


def test_what_a_commit_has_added_is_counted_from_its_own_files(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    lay_tape(lake, "some", ["a", "b"], [(1,), (2,)], None)
    tape = open_tape(lake, "some")
    earlier = deltalake.DeltaTable(tape.paths.events)
    rows = pa.table(earlier.to_pyarrow_table())
    deltalake.write_deltalake(tape.paths.events, rows.slice(0, 3), mode="append")
    for file in earlier.file_uris():
        Path(file.removeprefix("file://")).unlink()

    events, records = index.added_counts(tape, earlier.version() + 1)
    assert events == Counter(rows.column("worker").to_pylist()[:3])
    assert records == sum(number or 0 for number in rows.column("records").to_pylist()[:3])
    with pytest.raises(SystemFailureError, match="CAP-DAMAGED"):
        index.added_counts(tape, earlier.version())
