"""Columns of all rows of a table, in batches of many."""

from __future__ import annotations

from pathlib import Path

import deltalake
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs

from capstan.tape.scan import in_portions, read_columns, rows_of


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
    found = list(in_portions(batches, rows))
    assert [n for batch in found for n in batch.column("n").to_pylist()] == list(range(sum(sizes)))
    assert all(batch.num_rows >= rows for batch in found[:-1])
    assert all(batch.num_rows for batch in found)


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
    found = rows_of(path)
    assert isinstance(found.filesystem, fs.SubTreeFileSystem)
    assert isinstance(found.filesystem.base_fs, fs.LocalFileSystem)
    assert found.to_table().sort_by("a").to_pydict() == rows.to_pydict()
