"""A law over random histories of a folder: what is on tape is what a plain listing of it has had.

Files come old and new, nested and hidden, are touched, renamed, written anew, and have columns that
were added, moved or have another type. Each capture gives what a model of plain dicts gives, or is
refused by name and changes nothing.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from capstan.capture.query.source_reconciliation import reconcile
from capstan.capture.run import CaptureResult, capture
from capstan.core.config import ByKey, EpochTime, Source, Stream
from capstan.errors import InvalidRequestError
from capstan.storage.delta import delta
from capstan.storage.lake import Lake
from capstan.storage.tape.tape import open_tape

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STEPS = 6
Row = tuple[tuple[str, object], ...]
"""Names and values of a record; those that are null are left out."""


@dataclass
class Folder:
    """A source as it is, and what a model knows of it.

    Attributes:
        root: The folder.
        random: Draws what happens next.
        rows: What each file has.
        read: The size and time of change of each file that was captured, as it was then.
        columns: What the stream has gained, in that order.
    """

    root: Path
    random: Random
    rows: dict[Path, list[Row]] = field(default_factory=dict)
    read: dict[Path, tuple[int, int]] = field(default_factory=dict)
    columns: list[str] = field(default_factory=lambda: ["id", "amount"])
    on_tape: Counter[Row] = field(default_factory=Counter)
    ids: int = 0

    def write(self, path: Path, names: list[str], *, wrong: bool = False) -> None:
        """Write a file of one to three rows, at any moment of the last ten years."""
        count = self.random.randint(1, 3)
        columns: dict[str, pa.Array] = {}
        for name in names:
            if name == "id":
                values: list[object] = [f"r{self.ids + n}" for n in range(count)]
            elif wrong and name == "amount":
                values = ["much"] * count
            else:
                values = [self.random.randint(0, 9) for _ in range(count)]
            columns[name] = pa.array(values)
        self.ids += count
        path.parent.mkdir(parents=True, exist_ok=True)
        table = pa.table(columns)
        pq.write_table(table, path)
        self.move_time(path)
        self.rows[path] = [tuple(sorted(row.items())) for row in table.to_pylist()]

    def move_time(self, path: Path) -> None:
        at = 1_400_000_000 + self.random.randint(0, 3 * 10**8)
        os.utime(path, (at, at))

    def new_path(self) -> Path:
        folder = self.random.choice(["", "", "2024/05", "deep/er/still", "_hidden", "x"])
        name = self.random.choice(["part-{}", "part-{}", "_side-{}", ".dot-{}", "a b {}", "ä{}"])
        return self.root / folder / (name.format(self.ids) + ".parquet")

    def now(self, path: Path) -> tuple[int, int]:
        actual = path.stat()
        return actual.st_size, actual.st_mtime_ns // 1_000_000

    def hidden(self, path: Path) -> bool:
        return any(name[0] in "._" for name in path.relative_to(self.root).parts)

    def act(self) -> tuple[str, Path]:
        """Do one thing to the folder; what it was, and to which file."""
        known = [path for path in self.read if path.exists()]
        acts = ["add", "add", "add", "moved", "gained", "wrong"]
        acts += ["touch", "rename", "anew", "delete"] if known else []
        act = self.random.choice(acts)
        path = self.random.choice(known) if act in ("touch", "rename", "anew", "delete") else None
        if path is None:
            path = self.new_path()
            names = list(self.columns)
            if act == "moved":
                names.reverse()
            elif act == "gained":
                names.append(f"more{self.ids}")
            self.write(path, names, wrong=act == "wrong")
        elif act == "touch":
            self.move_time(path)
        elif act == "delete":
            path.unlink()
        elif act == "anew":
            self.write(path, self.columns)
        else:
            to = path.with_name(f"again-{self.ids}.parquet")
            path.rename(to)
            self.rows[to] = self.rows[path]
            # One that was touched since it was read is another file by all that is known of it.
            return (act if self.read[path] == self.now(to) else "add"), to
        return act, path

    def fresh(self) -> list[Path]:
        return [
            path
            for path in self.root.rglob("*.parquet")
            if path not in self.read and not self.hidden(path)
        ]

    def captured(self) -> int:
        """What a capture takes now; how many records."""
        fresh = sorted(self.fresh(), key=lambda path: (self.now(path)[1], str(path)))
        rows = [row for path in fresh for row in self.rows[path]]
        for path in fresh:
            self.read[path] = self.now(path)
            there = [name for row in self.rows[path] for name, _ in row]
            self.columns += sorted({*there} - {*self.columns})
        self.on_tape.update(rows)
        return len(rows)

    def passed(self) -> dict[str, int]:
        """What a capture has passed over, by reason."""
        there = list(self.root.rglob("*.parquet"))
        hidden = sum(path not in self.read and self.hidden(path) for path in there)
        changed = sum(path in self.read and self.read[path] != self.now(path) for path in there)
        counts = {"changed": changed, "hidden": hidden}
        return {reason: count for reason, count in counts.items() if count}


DAILY = (0, 8)
"""Histories that together have each act: old and nested files, renamed ones, wrong columns."""


@pytest.mark.parametrize(
    "seed",
    [pytest.param(seed, marks=[] if seed in DAILY else pytest.mark.nightly) for seed in range(14)],
)
def test_what_is_on_tape_is_what_the_folder_has_had(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    folder = Folder(tmp_path / "src", Random(seed))
    folder.write(folder.root / "first.parquet", folder.columns)
    stream = Stream(
        name="histories",
        source=Source(format="parquet", path=str(folder.root)),
        workers=ByKey(("id",), 2),
        time=EpochTime(),
    )
    lake = Lake.at(tmp_path / "lake")
    done = capture(spark, lake, stream)
    require_alike(lake, folder, done)
    for _ in range(STEPS):
        act, path = folder.act()
        if refused := refusal(folder, act, path):
            before = versions(lake)
            with pytest.raises(InvalidRequestError) as caught:
                capture(spark, lake, stream)
            assert (caught.value.code, versions(lake)) == (refused, before), (act, path)
            mend(folder, act, path)
        done = capture(spark, lake, stream)
        require_alike(lake, folder, done)
    actual = reconcile(spark, open_tape(lake, "histories"), stream)
    there = {p for p in folder.read if p.exists() and folder.read[p] == folder.now(p)}
    assert actual.unread == 0
    assert (actual.gone == 0) == all(path.exists() for path in folder.read)
    assert len(there) + actual.gone + folder.passed().get("changed", 0) == len(folder.read)


def refusal(folder: Folder, act: str, path: Path) -> str | None:
    """The code by which a capture is refused now; None if it is not."""
    if folder.hidden(path):
        return None
    return {"wrong": "CAP-SCHEMA", "rename": "CAP-RENAMED"}.get(act)


def mend(folder: Folder, act: str, path: Path) -> None:
    """Do what the error advises."""
    if act == "wrong":
        path.unlink()
    else:
        folder.move_time(path)


def versions(lake: Lake) -> list[int | None]:
    paths = lake.stream("histories")
    return [delta.version_of(item) for item in (paths.records, paths.events, paths.feed)]


def require_alike(lake: Lake, folder: Folder, done: CaptureResult) -> None:
    """Check that a capture has taken what the model takes, and tells of all else."""
    assert (done.records, done.late) == (folder.captured(), {})
    actual = pl.read_delta(lake.stream("histories").records)["data"].struct.unnest().to_dicts()
    rows = [tuple(sorted((k, v) for k, v in row.items() if v is not None)) for row in actual]
    assert Counter(rows) == folder.on_tape
    assert done.passed is not None
    assert dict(done.passed.counts) == folder.passed()
