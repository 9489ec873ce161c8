"""File listings of sources, compared with the files that captures have read."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from capstan.capture.source.files.listing import (
    Reason,
    SourceFile,
    SourceListing,
    captured_files,
    fresh_files,
    path_of,
    require_none_renamed,
    require_same_place,
    seen_files,
    skipped_files,
)
from capstan.core.config import Source
from capstan.errors import InvalidRequestError
from capstan.storage.lake import Lake
from capstan.storage.tape import feed
from capstan.storage.tape.feed import BatchEntry, Consumed, Origin
from capstan.storage.tape.tape import Tape, open_tape
from tests.support.jvmless_lake import lay_tape

OLD = 1_000_000_000_000
"""A moment in 2001, in milliseconds since 1970."""


class Place:
    """A folder with files, and a tape with a feed of the files read."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "src"
        self.folder.mkdir()
        lake = Lake.at(root / "lake")
        lay_tape(lake, "s", "a", [(1,)], None)
        self.tape: Tape = open_tape(lake, "s")
        self.batch = 0

    def source(self, **options: str) -> Source:
        return Source(format="parquet", path=str(self.folder), options=options)

    def lay(self, *names: str, content: str = "x", modified: int = OLD) -> None:
        for name in names:
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
            os.utime(path, ns=(modified * 1_000_000,) * 2)

    def read(self, *names: str, kept: bool = True) -> None:
        files = self.listing.files
        actual = [files[str(self.folder / name)] for name in names]
        detail = {"kept": [(item.size, item.modified) for item in actual]} if kept else None
        uris = tuple((self.folder / name).as_uri() for name in names)
        part = Consumed(files=uris, detail=detail)
        feed.register_batch(
            self.tape, BatchEntry(self.batch, Origin.CAPTURE, "c", self.batch, (part,))
        )
        log = Path(self.tape.paths.checkpoint) / "sources" / "0"
        log.mkdir(parents=True, exist_ok=True)
        pairs = zip(uris, actual, strict=True)
        lines = [{"path": uri, "timestamp": file.modified, "batchId": 0} for uri, file in pairs]
        text = "\n".join(["v1", *map(json.dumps, lines)])
        (log / str(self.batch)).write_text(text, encoding="utf-8")
        self.batch += 1

    @property
    def listing(self) -> SourceListing:
        actual = SourceListing.of(self.source())
        assert actual is not None
        return actual

    def passed(self, **options: str) -> dict[str, list[str]]:
        """What was passed over as the feed has it, and as the checkpoint has."""
        fed = skipped_files(self.source(**options), self.listing, captured_files(self.tape) or {})
        assert fed == skipped_files(self.source(**options), self.listing, seen_files(self.tape))
        assert {reason: len(files) for reason, files in fed.files.items()} == fed.counts
        return dict(fed.files)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("file:///a/b%20c", "/a/b c"),
        ("file:/a/b", "/a/b"),
        ("/a/../b", "/b"),
        ("/a:b/c", "/a:b/c"),
        ("s3a://bucket/a/b%3D", "bucket/a/b="),
        ("bucket/a", "bucket/a"),
    ],
)
def test_a_location_has_one_normalized_path(uri: str, path: str) -> None:
    assert path_of(uri) == path


def test_each_skipped_file_has_a_reason(place: Place) -> None:
    place.lay("a.parquet", "2024/05/b c.parquet", "_export.parquet", ".part/d.parquet")
    place.lay("_SUCCESS", ".a.parquet.crc", "_temporary/0/e.parquet", "_delta_log/0.json")
    place.read("a.parquet")
    hidden = [".part/d.parquet", "_export.parquet"]
    assert place.passed() == {"hidden": hidden, "unread": ["2024/05/b c.parquet"]}
    assert place.passed(pathGlobFilter="a*")["excluded"] == ["2024/05/b c.parquet"]
    assert place.passed(pathGlobFilter="b*")["unread"] == ["2024/05/b c.parquet"]
    assert place.passed(recursiveFileLookup="false")["excluded"] == ["2024/05/b c.parquet"]
    # Which of them options of age leave out, Spark alone can tell.
    aged = place.source(maxFileAge="1d")
    assert skipped_files(aged, place.listing, {}).counts == {"hidden": 2, "excluded": 2}
    assert len(fresh_files(aged, place.listing, {})) == 2
    place.read("2024/05/b c.parquet")
    assert place.passed() == {"hidden": hidden}


def test_a_file_changed_after_its_capture_is_reported(place: Place) -> None:
    place.lay("a.parquet", "b.parquet", "c.parquet")
    place.read("a.parquet", "b.parquet")
    assert place.passed() == {"unread": ["c.parquet"]}
    place.read("c.parquet", kept=False)
    place.lay("b.parquet", modified=OLD + 1)
    assert place.passed() == {"changed": ["b.parquet"]}
    # Of the same moment and another size it is to the feed; what that has not kept nobody knows.
    place.lay("a.parquet", "c.parquet", content="xy")
    fed = skipped_files(place.source(), place.listing, captured_files(place.tape) or {})
    assert fed.files == {"changed": ["a.parquet", "b.parquet"]}


def test_a_renamed_file_is_refused(place: Place) -> None:
    place.lay("a.parquet", "b.parquet")
    place.read("a.parquet", "b.parquet")
    place.lay("copy.parquet")
    require_none_renamed(place.listing, seen_files(place.tape), place.tape)
    (place.folder / "copy.parquet").unlink()
    (place.folder / "a.parquet").rename(place.folder / "c.parquet")
    with pytest.raises(
        InvalidRequestError, match=r"CAP-RENAMED: stream s: c\.parquet is the renamed file a\.parq"
    ):
        require_none_renamed(place.listing, seen_files(place.tape), place.tape)
    place.lay("c.parquet", modified=OLD + 7)
    require_none_renamed(place.listing, seen_files(place.tape), place.tape)


def test_files_that_were_read_elsewhere_are_refused(place: Place, tmp_path: Path) -> None:
    """Spark would read them once more: it knows files by their whole paths."""
    place.lay("a.parquet", "2024/05/b c.parquet")
    place.read("a.parquet")
    place.read("2024/05/b c.parquet")
    before, seen = place.folder, seen_files(place.tape)
    # A file of the same name in another folder of the same source is a file of its own.
    place.lay("later.parquet", "b c.parquet", modified=OLD + 5)
    require_same_place(place.listing, seen, place.tape)
    place.folder = tmp_path / "copies" / "src"
    for content, name, moved in (
        ("x", "2024/05/b c.parquet", True), ("x", "a.parquet", True),
        # Another file of the same name, or in another folder, is none that was read.
        ("xy", "a.parquet", False), ("x", "2024/a.parquet", False),
    ):  # fmt: skip
        place.lay(name, content=content, modified=OLD + 5)
        if moved:
            with pytest.raises(
                InvalidRequestError, match="^CAP-SOURCE-MOVED: stream s: "
            ) as caught:
                require_same_place(place.listing, seen, place.tape)
            places = {"path": str(place.folder), "former": str(before)}
            assert caught.value.fields == {"stream": "s", **places}
            assert "with a link from there if the files were moved" in caught.value.hint
        else:
            require_same_place(place.listing, seen, place.tape)
        (place.folder / name).unlink()
    # A folder above, or a part of it, has the files where they were.
    for folder in (before.parent, before / "2024"):
        place.folder = folder
        require_same_place(place.listing, seen, place.tape)


def test_a_symbolic_link_loop_is_refused(place: Place) -> None:
    place.lay("a.parquet", "days/b.parquet")
    (place.folder / "all").symlink_to(place.folder / "days")
    assert len(place.listing.files) == 3
    (place.folder / "days" / "back").symlink_to(place.folder)
    with pytest.raises(InvalidRequestError, match=r"CAP-SOURCE: .*/(all|days)/back is a link to"):
        _ = place.listing


def test_a_symbolic_link_to_nothing_is_reported(place: Place) -> None:
    place.lay("a.parquet")
    for name in ("gone.parquet", "_gone.parquet", "other.csv", "days"):
        (place.folder / name).symlink_to(place.folder.parent / f"elsewhere {name}")
    (place.folder / "itself.parquet").symlink_to(place.folder / "itself.parquet")
    place.read("a.parquet")
    assert place.passed(pathGlobFilter="*.parquet") == {
        "dangling": ["gone.parquet", "itself.parquet"],
        "excluded": ["days", "other.csv"],
        "hidden": ["_gone.parquet"],
    }
    # Once there is something, it is read as any other file; and is no file once it is gone again.
    place.lay("../elsewhere gone.parquet", "../elsewhere days/b.parquet")
    (place.folder / "itself.parquet").unlink()
    fresh = fresh_files(place.source(), place.listing, seen_files(place.tape))
    assert sorted(map(place.listing.relative, fresh)) == ["days/b.parquet", "gone.parquet"]
    place.read("gone.parquet", "days/b.parquet")
    (place.folder.parent / "elsewhere gone.parquet").unlink()
    assert place.passed() == {"dangling": ["other.csv"], "hidden": ["_gone.parquet"]}


def test_files_read_before_the_feed_recorded_them_are_unknown(place: Place) -> None:
    place.lay("a.parquet")
    assert captured_files(place.tape) == {}
    place.batch = 1
    place.read("a.parquet")
    assert captured_files(place.tape) is None


def test_sources_without_files_are_not_listed(tmp_path: Path) -> None:
    for source in (
        Source(format="kafka"),
        Source(format="delta", path=str(tmp_path)),
        Source(format="json", path="nowhere://at/all"),
    ):
        assert SourceListing.of(source) is None
    (tmp_path / "one.json").write_text("{}", encoding="utf-8")
    for path in (tmp_path, tmp_path / "one.json", f"file:{tmp_path}", tmp_path.as_uri()):
        actual = SourceListing.of(Source(format="json", path=str(path)))
        assert actual is not None
        assert [file.size for file in actual.files.values()] == [2]


_ABOVE_PARTITIONS = ("2024/*", "{2024/06,a*}", "*")


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.json", ["a.json", "b[1].json"]),
        ("?.json", ["a.json"]),
        ("b\\[1\\].json", ["b[1].json"]),
        ("{a,x}.json", ["a.json"]),
        ("2024/*", ["2024/05/_c.json", "2024/05/d.json", "2024/06/k=v/e.json"]),
        ("2024/0[1-5]", ["2024/05/_c.json", "2024/05/d.json"]),
        ("20*/0[^5]/*", ["2024/06/k=v/e.json"]),
        ("{2024/06,a*}", ["2024/06/k=v/e.json", "a.json"]),
        ("*", ["2024/05/_c.json", "2024/05/d.json", "2024/06/k=v/e.json", "a.json", "b[1].json"]),
        ("nothing*", []),
    ],
)
def test_a_path_with_wildcards_lists_its_matches(
    place: Place, pattern: str, found: list[str]
) -> None:
    place.lay("a.json", "b[1].json", "2024/05/_c.json", "2024/05/d.json", "2024/06/k=v/e.json")
    source = Source(format="json", path=f"{place.folder}/{pattern}")
    listing = SourceListing.of(source)
    assert listing is not None
    assert (
        sorted(Path(path).relative_to(place.folder).as_posix() for path in listing.files) == found
    )
    hidden = {"2024/05/_c.json"}.intersection(found)
    fresh = fresh_files(source, listing, {})
    assert set(listing.files) - set(fresh) == {f"{place.folder}/{name}" for name in hidden}
    # What the pattern says itself of the folders is none of the records' columns.
    assert listing.partition_columns() == (["k"] if pattern in _ABOVE_PARTITIONS else [])


@pytest.mark.parametrize("written", ["src", "./src", "src/*.json"])
def test_folders_above_a_relative_path_are_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    above = tmp_path / "_day=1"
    (above / "src").mkdir(parents=True)
    (above / "src" / "a.json").write_text("{}", encoding="utf-8")
    monkeypatch.chdir(above)
    source = Source(format="json", path=written)
    listing = SourceListing.of(source)
    assert listing is not None
    assert [listing.relative(path) for path in fresh_files(source, listing, {})] == ["a.json"]
    assert not listing.partitioned


@pytest.mark.parametrize(
    ("files", "partitioned"),
    [
        (["a.json"], False),
        (["2024/a.json"], False),
        (["day=2024-05-01/a.json"], True),
        (["a=b.json"], False),
    ],
)
def test_partitions_are_recognized_by_folder_names(
    place: Place, files: list[str], partitioned: bool
) -> None:
    place.lay(*files)
    assert place.listing.partitioned is partitioned


def test_the_summary_samples_names_and_counts_all(place: Place) -> None:
    place.lay(*(f"{n}.parquet" for n in range(5)))
    actual = skipped_files(place.source(), place.listing, {})
    assert actual.text == "5 unread (0.parquet, 1.parquet, 2.parquet, ...)"
    assert actual.counts == {str(Reason.UNREAD): 5}
    assert SourceFile(1, OLD) in place.listing.files.values()
