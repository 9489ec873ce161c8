"""Data files in an object store: small ones are fetched once, and opened as often as wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyarrow import dataset, parquet

from capstan.storage import lake
from capstan.storage.delta import small_files

if TYPE_CHECKING:
    from pathlib import Path

TABLE = "s3a://bucket/table"


class Store:
    """A folder that is taken for a store, and the files that were fetched from it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fetched: list[str] = []

    def put(self, name: str, rows: int) -> int:
        """Write a file of so many rows, and return its size."""
        file = self.folder / name
        parquet.write_table(pa.table({"n": pa.array(range(rows), pa.int64())}), file)
        return file.stat().st_size

    def open_file(self, path: str) -> pa.NativeFile:
        name = path.removeprefix(f"{TABLE}/")
        self.fetched.append(name)
        return pa.OSFile(str(self.folder / name))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    actual = Store(tmp_path)
    monkeypatch.setattr(lake, "open_file", actual.open_file)
    monkeypatch.setattr(small_files, "_contents", small_files._Contents())
    return actual


def read(name: str) -> int:
    with small_files.open_file(f"{TABLE}/{name}") as file:
        return parquet.read_table(file).num_rows


def test_a_small_file_is_fetched_once(store: Store) -> None:
    store.put("a.parquet", 3)
    store.put("b.parquet", 5)
    assert [read("a.parquet"), read("b.parquet"), read("a.parquet")] == [3, 5, 3]
    assert store.fetched == ["a.parquet", "b.parquet"]


def test_a_large_file_is_not_kept(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_files, "_LARGEST", store.put("a.parquet", 3) - 1)
    assert [read("a.parquet"), read("a.parquet")] == [3, 3]
    assert store.fetched == ["a.parquet"] * 2


def test_what_was_not_used_for_longest_goes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    size = max(store.put(f"{name}.parquet", 3) for name in "abc")
    monkeypatch.setattr(small_files, "_CAPACITY", 2 * size)
    for name in "abacab":
        assert read(f"{name}.parquet") == 3
    assert "".join(name[0] for name in store.fetched) == "abcb"


def test_a_file_is_not_used_once_it_is_known_to_be_gone(store: Store) -> None:
    for name in "abc":
        store.put(f"{name}.parquet", 3)
        assert read(f"{name}.parquet") == 3
    store.put("b.parquet", 300)
    (store.folder / "c.parquet").unlink()
    small_files.look_again()
    assert [read("a.parquet"), read("b.parquet")] == [3, 300]
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            read("c.parquet")
    requested = len(store.fetched)
    assert [read("a.parquet"), read("b.parquet"), len(store.fetched)] == [3, 300, requested]


def test_a_dataset_opens_the_kept_files(store: Store) -> None:
    names = ["a.parquet", "b%20.parquet"]
    for rows, name in enumerate(names, 3):
        store.put(name, rows)
    for _ in range(2):
        rows = dataset.FileSystemDataset.from_paths(
            names,
            schema=pa.schema([("n", pa.int64())]),
            format=dataset.ParquetFileFormat(),
            filesystem=small_files.folder(TABLE),
        )
        assert rows.to_table(filter=dataset.field("n") == 3)["n"].to_pylist() == [3]
        assert rows.count_rows() == 7
    assert sorted(store.fetched) == sorted(names)


def test_files_of_a_folder_are_not_kept(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    for rows in (3, 4):
        parquet.write_table(pa.table({"n": range(rows)}), file)
        with small_files.open_file(str(file)) as opened:
            assert parquet.read_table(opened).num_rows == rows
