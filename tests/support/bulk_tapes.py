"""Tapes of thousands of commits, written without a JVM; and a count of opened files.

Each commit of a tape has its own file, and all of them are one commit of Delta.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import patch

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.transaction import AddAction, RemoveAction
from pyarrow import fs, parquet

from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.storage.compaction.merging import PART_ROWS
from capstan.storage.delta import arrow_scan
from capstan.storage.delta.arrow_writer import arrow_schema
from capstan.storage.lake import Lake, folder, open_file
from capstan.storage.ledger.region_json import region_text
from capstan.storage.ledger.run_identity import short_name
from capstan.storage.ledger.tables import SCHEMAS, make_ledger
from capstan.storage.tape import index_totals
from capstan.storage.tape.tape import open_tape
from tests.support.jvmless_lake import EVENT, Books, lay_tape

HOUR = 3_600_000_000
_EVERYTHING = region_text(Region(Box.everything(EVENT)))


def lay_index(lake: Lake, name: str, commits: int, workers: int = 2) -> None:
    """Write a tape with a number of commits, each a file of its index.

    In commit `c` each worker has a record at hour `c`, and then holds the next hour.
    """
    lay_tape(lake, name, [f"worker {n}" for n in range(workers)], [(0,)], (HOUR,))
    path = Path(lake.stream(name).events)
    index = deltalake.DeltaTable(path)
    schema = index.to_pyarrow_table().schema
    actions: list[AddAction | RemoveAction] = [
        _file(path, schema, n, workers) for n in range(1, commits)
    ]
    index.create_write_transaction(actions, "append", index.schema())


def _file(path: Path, schema: pa.Schema, commit: int, workers: int) -> AddAction:
    """A file of the index, and its entry in Delta's log."""
    at, after = {"event": commit * HOUR}, {"event": (commit + 1) * HOUR}
    moved = [{"time": at, "diff": -1}, {"time": after, "diff": 1}]
    fields = {"time": at, "records": 1, "fingerprint": {"h1": 1, "h2": 2}}
    events: list[dict[str, object]] = [
        {"kind": "messages", **fields},
        {"kind": "progress", "updates": moved},
    ]
    rows = [
        {"worker": worker, "seq": 2 * commit + more, "batch": commit, "commit": commit, **event}
        for worker in range(workers)
        for more, event in enumerate(events)
    ]
    name = f"{commit:06}.parquet"
    parquet.write_table(pa.Table.from_pylist(rows, schema=schema), path / name)
    moment = pc.strftime(pa.scalar(commit * HOUR, pa.timestamp("us")), "%Y-%m-%dT%H:%M:%SZ").as_py()
    least = {"worker": 0, "seq": 2 * commit, "batch": commit, "commit": commit}
    most = {**least, "worker": workers - 1, "seq": 2 * commit + 1}
    stats = {
        "numRecords": len(rows),
        "minValues": {**least, "time": {"event": moment}},
        "maxValues": {**most, "time": {"event": moment}},
        "nullCount": {},
    }
    size = (path / name).stat().st_size
    return AddAction(name, size, {}, commit, True, json.dumps(stats))


@contextmanager
def counting() -> Iterator[Counter[str]]:
    """Count the files of tables that are opened for reading, by the name of their folder."""
    opened: Counter[str] = Counter()

    def open_counted(path: str) -> pa.NativeFile:
        # The folder of a partition is not a table.
        opened[[part for part in path.split("/")[:-1] if "=" not in part][-1]] += 1
        return open_file(path)

    def counted_folder(path: str) -> fs.FileSystem:
        return fs.PyFileSystem(_Counting(path, opened))

    with (
        patch.object(arrow_scan, "open_file", open_counted),
        patch.object(arrow_scan, "folder", counted_folder),
        patch.object(index_totals, "open_file", open_counted),
    ):
        yield opened


class _CountedBytes:
    """A file that counts the bytes that are read of it."""

    def __init__(self, file: pa.NativeFile, count: Callable[[int], None]) -> None:
        self._file, self._count = file, count

    def read_buffer(self, size: int) -> pa.Buffer:
        content = self._file.read_buffer(size)
        self._count(content.size)
        return content

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


class _Counting(fs.FileSystemHandler):  # type: ignore[misc]
    """A read-only folder that counts opened files."""

    def __init__(self, path: str, opened: Counter[str]) -> None:
        self._name, self._opened, self._inside = path.rpartition("/")[2], opened, folder(path)

    def open_input_file(self, path: str) -> pa.NativeFile:
        self._opened[self._name] += 1
        return pa.PythonFile(_CountedBytes(self._inside.open_input_file(path), self._count), "r")

    def _count(self, size: int) -> None:
        self._opened[f"{self._name} bytes"] += size

    def open_input_stream(self, path: str) -> pa.NativeFile:
        self._opened[self._name] += 1
        return self._inside.open_input_stream(path)

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        infos: list[fs.FileInfo] = self._inside.get_file_info(paths)
        return infos

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        infos: list[fs.FileInfo] = self._inside.get_file_info(selector)
        return infos

    def get_type_name(self) -> str:
        return "counting"

    def normalize_path(self, path: str) -> str:
        return path

    def _refuse(self, *_: object) -> None:
        raise NotImplementedError

    copy_file = create_dir = delete_dir = delete_dir_contents = delete_file = _refuse
    delete_root_dir_contents = move = open_append_stream = open_output_stream = _refuse


def lay_verified(lake: Lake, name: str, count: int, workers: int = 2) -> None:
    """Write verifications of a tape, each in its own file and at a commit of its own.

    The first one is of all workers and events, the others are of worker 0.
    """
    tape = open_tape(lake, name)
    path = Path(make_ledger(lake, "verified"))
    table = deltalake.DeltaTable(path)
    schema = pa.schema(table.schema().to_arrow())
    common: dict[str, object] = {
        "stream": name, "tape": tape.identity, "events": 1, "records": 1, "holdings": "[]",
        "at": datetime(2020, 1, 1, tzinfo=UTC),
    }  # fmt: skip
    actions: list[AddAction | RemoveAction] = []
    for commit in range(count):
        chosen: list[int | None] = [None, *range(workers)] if commit == 0 else [0]
        rows = [{**common, "commit": commit, "worker": worker} for worker in chosen]
        actions.append(_row_file(path, schema, commit, rows))
    table.create_write_transaction(actions, "append", table.schema())


def lay_runs(books: Books, runs: int) -> None:
    """Write published runs, each row of the ledgers in its own file.

    Args:
        books: Lake, stream and target of the runs.
        runs: Number of runs; the identity of each starts with its number, in eight digits.
    """
    begin = datetime(2020, 1, 1, tzinfo=UTC)
    for ledger in ("claims", "runs"):
        books.append(ledger)
        path = Path(books.lake.ledger(ledger))
        table = deltalake.DeltaTable(path)
        schema = pa.schema(table.schema().to_arrow())
        actions: list[AddAction | RemoveAction] = []
        for number in range(runs):
            at = begin + timedelta(seconds=number)
            row: dict[str, object] = {
                "run": f"{short_name(books.target)}-{number:08}-1", "attempt": 1,
                "stream": books.stream, "target": books.target, "at": at,
            }  # fmt: skip
            if ledger == "claims":
                row |= {"claim": number, "kind": "claim", "workers": [0], "region": _EVERYTHING}
                rows = [{**row, "expires": at + timedelta(hours=12)}]
            else:
                row |= {"identity": f"{number:08}".ljust(32, "0"), "generation": 1, "detail": "{}"}
                rows = [{**row, "step": step} for step in ("intent", "done")]
            actions.append(_row_file(path, schema, number, rows))
        table.create_write_transaction(actions, "append", table.schema())


def lay_compacted_runs(books: Books, runs: int, targets: int) -> None:
    """Write published runs into several targets as maintenance compacts them, a file a ledger.

    The first target is that of the books. Each run is of another hour, and their identities are
    spread; the runs are in turns into each target.
    """
    begin, target = datetime(2020, 1, 1, tzinfo=UTC), books.target
    rows: dict[str, list[dict[str, object]]] = {"claims": [], "runs": [], "coverage": []}
    detail = json.dumps({"attempt": 1, "target_version": 0, "text": "certificate " * 10})
    for number in range(runs):
        turn, place = divmod(number, targets)
        path = f"{target}{place}" if place else target
        identity = f"{number * 2654435761 % 2**32:08x}".ljust(32, "0")
        region = region_text(Region(Box((turn * HOUR,), ((turn + 1) * HOUR,))))
        common: dict[str, object] = {
            "run": f"{short_name(path)}-{identity[:8]}-1", "attempt": 1, "generation": 1,
            "stream": books.stream, "target": path, "at": begin + timedelta(seconds=number),
            "region": region, "identity": identity, "detail": detail, "claim": number,
            "kind": "claim", "workers": [0], "expires": begin + timedelta(seconds=number, hours=12),
            "transform": "", "code": "", "cut": 0, "target_version": number, "worker": 0,
            "state": "published",
        }  # fmt: skip
        for ledger in rows:
            of_ledger = {name: common[name] for name in SCHEMAS[ledger].names if name in common}
            steps = ("intent", "done") if ledger == "runs" else (None,)
            rows[ledger] += [of_ledger | ({"step": step} if step else {}) for step in steps]
    for ledger, written in rows.items():
        path = make_ledger(books.lake, ledger)
        table = pa.Table.from_pylist(written, schema=arrow_schema(SCHEMAS[ledger]))
        table = table.sort_by([("run", "ascending"), ("at", "ascending")])
        file = Path(path) / "compacted.parquet"
        parquet.write_table(table, file, row_group_size=PART_ROWS)
        ends = {"minValues": _at(begin), "maxValues": _at(begin + timedelta(seconds=runs))}
        stats = json.dumps({"numRecords": len(written), "nullCount": {"at": 0}, **ends})
        add = AddAction(file.name, file.stat().st_size, {}, 0, True, stats)
        opened = deltalake.DeltaTable(path)
        opened.create_write_transaction([add], "append", opened.schema())


def _at(moment: datetime) -> dict[str, str]:
    return {"at": f"{moment:%Y-%m-%dT%H:%M:%SZ}"}


def _row_file(
    path: Path, schema: pa.Schema, number: int, rows: list[dict[str, object]]
) -> AddAction:
    name = f"{number:06}.parquet"
    parquet.write_table(pa.Table.from_pylist(rows, schema=schema), path / name)
    bounds = {
        key: f"{value:%Y-%m-%dT%H:%M:%SZ}" if isinstance(value, datetime) else value
        for key, value in rows[0].items()
        if key not in ("workers", "worker", "step")
    }
    stats = {"numRecords": len(rows), "minValues": bounds, "maxValues": bounds, "nullCount": {}}
    size = (path / name).stat().st_size
    return AddAction(name, size, {}, number, True, json.dumps(stats))
