"""The input of micro-batches, from the files of a Structured Streaming checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from capstan.capture.source.files.consumed_offsets import (
    consumed,
    consumed_by_query,
    logged_files,
    started_at,
)
from capstan.core.config import Source
from capstan.storage.tape.feed import Consumed

FILES = Source(format="parquet", path="/source")
KAFKA = Source(format="kafka")


def lay(folder: Path, name: str, *lines: object) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "\n".join(["v1", *(json.dumps(line) for line in lines)])
    path.write_text(text, encoding="utf-8")


def offsets(folder: Path, *ends: object) -> None:
    """Offsets of micro-batches as Spark writes them: version, metadata, source."""
    for batch, end in enumerate(ends):
        lay(folder, f"offsets/{batch}", {"batchWatermarkMs": 0}, end)


def entry(number: int, *names: str) -> list[dict[str, object]]:
    return [{"path": f"file:///s/{n}", "timestamp": 1, "batchId": number} for n in names]


def test_files_of_one_several_and_no_log_entries(tmp_path: Path) -> None:
    # The second micro-batch took what two looks at the source had found, the third nothing.
    offsets(tmp_path, {"logOffset": 0}, {"logOffset": 2}, {"logOffset": 2})
    for number, names in enumerate([["a"], ["b", "c"], ["d"]]):
        lay(tmp_path, f"sources/0/{number}", *entry(number, *names))
    actual = [consumed(str(tmp_path), FILES, batch) for batch in range(3)]
    assert [item[0].files for item in actual] == [
        ("file:///s/a",),
        ("file:///s/b", "file:///s/c", "file:///s/d"),
        (),
    ]


def test_files_of_a_compacted_log(tmp_path: Path) -> None:
    offsets(tmp_path, *({"logOffset": n} for n in range(3)))
    lay(tmp_path, "sources/0/1", *entry(1, "b"))
    lay(tmp_path, "sources/0/2.compact", *entry(0, "a"), *entry(1, "b"), *entry(2, "c", "d"))
    (actual,) = consumed(str(tmp_path), FILES, 2)
    assert actual.files == ("file:///s/c", "file:///s/d")


def test_all_files_of_a_source(tmp_path: Path) -> None:
    assert list(logged_files(str(tmp_path))) == []
    lay(tmp_path, "sources/0/0", {"web": {"0": 5}})
    assert list(logged_files(str(tmp_path))) == []
    for number in range(11):
        lay(tmp_path, f"sources/0/{number}", *entry(number, f"{number}"))
    whole = [line for number in range(10) for line in entry(number, f"{number}")]
    (tmp_path / "sources/0/9").unlink()
    lay(tmp_path, "sources/0/9.compact", *whole)
    lay(tmp_path, "sources/0/.9.compact.crc")
    actual = sorted(logged_files(str(tmp_path)))
    assert actual == sorted((f"file:///s/{number}", 1) for number in range(11))


def test_offsets_of_partitions(tmp_path: Path) -> None:
    lay(tmp_path, "sources/0/0", {"web": {"0": 5, "1": 0}})
    offsets(
        tmp_path,
        {"web": {"0": 7, "1": 0}},
        {"web": {"0": 9, "1": 4, "2": 3}, "app": {"0": 1}},
        {"web": {"0": 9, "1": 4, "2": 3}, "app": {"0": 1}},
    )
    assert consumed(str(tmp_path), KAFKA, 0) == (Consumed("web/0", 5, 7),)
    # Of a partition that has just been found the first offset is not told.
    assert consumed(str(tmp_path), KAFKA, 1) == (
        Consumed("app/0", None, 1),
        Consumed("web/0", 7, 9),
        Consumed("web/1", 0, 4),
        Consumed("web/2", None, 3),
    )
    assert consumed(str(tmp_path), KAFKA, 2) == (Consumed(),)


@pytest.mark.parametrize("source", [FILES, KAFKA])
def test_unknown_offsets_give_one_empty_part(tmp_path: Path, source: Source) -> None:
    assert consumed(str(tmp_path), source, 3) == (Consumed(),)


def test_the_offset_of_other_sources_is_stored_as_it_is(tmp_path: Path) -> None:
    offsets(tmp_path, {"reservoirVersion": 4})
    (actual,) = consumed(str(tmp_path), Source(format="delta", path="/t"), 0)
    assert actual == Consumed(detail={"offset": {"reservoirVersion": 4}})


def test_the_start_of_a_micro_batch(tmp_path: Path) -> None:
    known = {"batchWatermarkMs": 0, "batchTimestampMs": 1795525530821, "conf": {}}
    lay(tmp_path, "offsets/0", known, {"logOffset": 0})
    offsets(tmp_path / "untold", {"logOffset": 0})
    lay(tmp_path, "offsets/1")
    lay(tmp_path, "offsets/2", "-", {"logOffset": 0})
    assert started_at(str(tmp_path), 0) == 1795525530821000
    assert started_at(str(tmp_path / "untold"), 0) is None
    assert [started_at(str(tmp_path), batch) for batch in (1, 2, 3)] == [None] * 3


def test_the_input_of_a_query_with_several_sources(tmp_path: Path) -> None:
    def ends(batch: int, *sources: object) -> None:
        lay(tmp_path, f"offsets/{batch}", {"batchWatermarkMs": 0}, *sources)

    folder = str(tmp_path)
    assert consumed_by_query(folder, 0) == (Consumed(),)
    ends(0, {"logOffset": 0}, {"web": {"0": 5}}, {"logOffset": 0})
    ends(1, {"logOffset": 1}, {"web": {"0": 5}}, {"logOffset": 0})
    for source in (0, 2):
        lay(tmp_path, f"sources/{source}/0", *entry(0, f"{source}"))
    lay(tmp_path, "sources/0/1", *entry(1, "b"))
    first, second = (consumed_by_query(folder, batch)[0].detail for batch in (0, 1))
    assert first is not None
    assert second is not None
    assert first["offsets"] == [{"logOffset": 0}, {"web": {"0": 5}}, {"logOffset": 0}]
    assert set(dict(first["files"])) == {"0", "2"}  # type: ignore[call-overload]
    # Of a source without new files there is nothing to tell.
    assert set(dict(second["files"])) == {"0"}  # type: ignore[call-overload]
    # Spark has compacted the log since: the files are the same.
    (tmp_path / "sources/0/1").unlink()
    lay(tmp_path, "sources/0/1.compact", *entry(0, "0"), *entry(1, "b"))
    assert consumed_by_query(folder, 1)[0].detail == second
    # Other files were taken for the same batch.
    lay(tmp_path, "sources/0/1.compact", *entry(0, "0"), *entry(1, "c"))
    assert consumed_by_query(folder, 1)[0].detail != second
