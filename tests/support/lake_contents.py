"""Contents of tables, in a form in which two lakes can be compared."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import polars as pl
import pyarrow as pa
from pyarrow import dataset

from capstan.pipeline.graph.arrow_ipc import table_from_bytes
from capstan.storage.delta import delta
from capstan.storage.delta.arrow_scan import rows_of
from capstan.storage.lake import Lake, is_table
from capstan.storage.ledger import claims, coverage, runs
from capstan.storage.ledger.region_json import region_text
from capstan.storage.ledger.runs import Step
from capstan.storage.tape.tape import open_tape
from capstan.verify import verify
from tests.support import small_stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = list[str]


def rows(path: str) -> Rows:
    """The rows of a Delta table as sorted JSON texts, equal for equal contents."""
    if not is_table(path):
        return []
    return _as_text(rows_of(path).to_table().to_pylist())


def _as_text(rows: list[dict[str, object]]) -> Rows:
    return sorted(json.dumps(row, sort_keys=True, default=str) for row in rows)


def read_by_others(lake: Lake) -> set[str]:
    """Check that Polars and DuckDB read the same as deltalake from every table of a lake.

    Of what is staged in a target, which only Spark reads as a table, Polars reads the files.

    Returns:
        The tables, as paths in the lake: `ledger/runs`.
    """
    root = Path(lake.root)
    names = {str(log.parent.relative_to(root)) for log in root.rglob("_delta_log")}
    for name in names:
        path = f"{root}/{name}"
        files = pa.table(delta.open_table(path).get_add_actions(flatten=True))
        if any(file.startswith("../") for file in files["path"].to_pylist()):
            places = [delta.resolve_path(path, file) for file in files["path"].to_pylist()]
            assert pl.read_parquet(places).height == sum(files["num_records"].to_pylist()), name
            continue
        read = rows(path)
        assert _as_text(pl.read_delta(path).to_dicts()) == read, name
        assert duckdb.from_arrow(rows_of(path)).count("*").fetchall() == [(len(read),)], name
    return names


def tape(lake: Lake, name: str = small_stream.NAME) -> dict[str, Rows]:
    """The rows of a tape's tables, except `feed`."""
    paths = lake.stream(name)
    return {
        "events": rows(paths.events),
        "records": rows(paths.records),
        "late": rows(paths.late),
        "workers": rows(paths.workers),
    }


def without_files(tape: dict[str, Rows]) -> dict[str, Rows]:
    """The same, without the files of late records: other folders have others, a query has none."""
    late = [{**json.loads(row), "file": None} for row in tape["late"]]
    return {**tape, "late": _as_text(late)}


def feed(lake: Lake, name: str = small_stream.NAME) -> Rows:
    """The contents of a tape's batches, independent of the checkpoint."""
    batches = [json.loads(row) for row in rows(lake.stream(name).feed)]
    return [json.dumps({**row, "checkpoint": bool(row["checkpoint"])}) for row in batches]


def table(lake: Lake, name: str) -> dict[str, object]:
    """A target: its rows and its coverage by the ledger, independent of the run."""
    path = lake.table(name)
    standing = [
        {
            "generation": row.generation,
            "stream": row.stream,
            "workers": row.scope.workers,
            "region": region_text(row.scope.region),
            "transform": row.transform,
            "cut": row.cut,
        }
        for row in coverage.current(lake, path)
    ]
    return {"rows": rows(path), "standing": standing}


def require_sound(spark: SparkSession, lake: Lake, name: str = small_stream.NAME) -> None:
    """Check that a tape is valid, including its records."""
    verification = verify(spark, lake, open_tape(lake, name), deep=True, remember=False)
    assert verification.valid, verification


def require_whole(lake: Lake, fed: Counter[int], place: str) -> None:
    """Check that every row fed is on tape or among the late rows, exactly once.

    Args:
        lake: The lake.
        fed: How often each `id` of the small stream was fed.
        place: Prefix of the message.
    """
    tape = lake.stream(small_stream.NAME)
    kept: Counter[int] = Counter()
    for path in (tape.records, tape.late):
        kept.update(pl.read_delta(path)["data"].struct.field("id").to_list())
    assert kept == fed, f"{place}: lost {fed - kept}, duplicated {kept - fed}"


def require_published_once(lake: Lake, run: str) -> None:
    """Check that a run is done once, by the ledger and by its target, and holds no lock."""
    history = runs.read_history(lake, run)
    steps = [row.step for row in history.rows]
    assert history.published, steps
    assert steps.count(Step.DONE) == 1, steps
    assert publishes(lake, history.last.target, run) == 1, steps
    assert history.done is not None
    version = history.done.target_version
    assert [c.target_version for c in _covered(lake, history.last.target, run)] == [version]
    assert [claim for claim in claims.active(lake) if claim.run == run] == []


def publishes(lake: Lake, target: str, run: str) -> int:
    """Number of commits of a target that publish a run."""
    notes = [commit.note for commit in delta.commits_since(lake.table(target), -1)]
    return sum(note.get("run") == run and bool(note.get("publish")) for note in notes)


def _covered(lake: Lake, target: str, run: str) -> list[coverage.Covered]:
    return [row for row in coverage.current(lake, target) if row.run == run]


def state(lake: Lake, pipeline: str, snapshot: str) -> Rows:
    """The contents of a followed pipeline's snapshot, independent of the replay workers."""
    condition = (dataset.field("snapshot") == snapshot) & (dataset.field("kind") != "head")
    table = rows_of(lake.state(pipeline)).to_table(filter=condition)
    texts = []
    for row in table.to_pylist():
        place = [row[name] for name in ("stage", "kind", "node", "part_of")]
        states = table_from_bytes(row["data"]).to_pylist()
        texts += [json.dumps([*place, value], default=str) for value in states]
    return sorted(texts)
