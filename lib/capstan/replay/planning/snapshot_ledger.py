"""Snapshots of the state of followed pipelines: a table per pipeline, and a ledger of what became.

The rows of a snapshot are written before the target is, under a name of the attempt. It counts
once the run has published by that attempt: the run's last row is the one that commits it, and
taking the run back takes it back. What a snapshot should have is in the run's certificate.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Self

from pyspark.sql import functions as F

from capstan.core.times import Antichain, Time
from capstan.pipeline.state.errors import NotWhole
from capstan.storage import delta
from capstan.storage.commit_lock import committing
from capstan.storage.lake import Lake, is_table
from capstan.storage.ledger.tables import PROPERTIES, append_rows, as_text, read_rows
from capstan.storage.table_creation import create_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Event(StrEnum):
    """What became of a snapshot after it was taken."""

    RESCALED = "rescaled"
    CLEARED = "cleared"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is known of a snapshot but for its rows.

    Attributes:
        name: Of the attempt that took it: `hours-3f2a9c1b-4-1`; of a rescaled one that and its
            replay workers: `hours-3f2a9c1b-4-1@5`.
        pipeline: Whose state it is.
        peers: How many replay workers it is of.
        frontier: The captured workers' together: all before it has been read.
        last: The watermark that stands for it.
        parts: How many rows it has in the table of the pipeline's state.
        rows: How many rows the operators' states have.
        waiting: How many rows of the sink have come out, and wait for their time to be written.
        bytes: How large the states are.
        held: How many keys there are state for, by replay worker and operator.
        before: The replay workers of the snapshot that it was rescaled from; None for one taken.
        signatures: What the states depend on, setting by setting, by operator; no others may go on
            from them. None of one that was taken before there were any.
    """

    name: str
    pipeline: str
    peers: int
    frontier: Antichain
    last: int
    parts: int
    rows: int
    waiting: int
    bytes: int
    held: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    before: int | None = None
    signatures: Mapping[str, Mapping[str, str]] | None = None

    @property
    def keys(self) -> dict[str, int]:
        """How many keys there are state for, by operator: each is with one worker."""
        found = Counter[str]()
        for mine in self.held.values():
            found.update(mine)
        return dict(found)

    def to_json(self) -> dict[str, object]:
        """All of it in one object."""
        return {
            "snapshot": self.name,
            "pipeline": self.pipeline,
            "peers": self.peers,
            "frontier": [list(time) for time in self.frontier.elements],
            "last": self.last,
            "parts": self.parts,
            "rows": self.rows,
            "waiting": self.waiting,
            "bytes": self.bytes,
            "keys": self.keys,
            "held": {worker: dict(keys) for worker, keys in self.held.items()},
            "before": self.before,
            "signatures": self.signatures
            and {name: dict(each) for name, each in self.signatures.items()},
        }

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> Self:
        """The snapshot of `to_json`; other fields are left alone."""
        given = dict(value)
        times = given["frontier"]
        assert isinstance(times, list)
        numbers = {
            name: int(str(given[name]))
            for name in ("peers", "last", "parts", "rows", "waiting", "bytes")
        }
        before = given.get("before")
        return cls(
            name=str(given["snapshot"]),
            pipeline=str(given["pipeline"]),
            frontier=Antichain.of(Time(time) for time in times),
            held=given["held"],  # type: ignore[arg-type]
            before=None if before is None else int(str(before)),
            signatures=given.get("signatures"),  # type: ignore[arg-type]
            **numbers,
        )


@dataclass(frozen=True, slots=True)
class Became:
    """A row of the ledger.

    Attributes:
        snapshot: The snapshot's name.
        event: What became of it.
        rescaled: What it was rescaled to.
    """

    snapshot: str
    event: Event
    rescaled: Snapshot | None = None


def write_parts(spark: SparkSession, lake: Lake, snapshot: Snapshot, rows: DataFrame) -> None:
    """Append the rows of a snapshot to the table of its pipeline's state, in one commit.

    Args:
        spark: The session.
        lake: The lake.
        snapshot: What they are of.
        rows: As `capstan.pipeline.spark.state_rows.COLUMNS` has them.
    """
    path = lake.state(snapshot.pipeline)
    named = rows.select(F.lit(snapshot.name).alias("snapshot"), *rows.columns)
    # Not append-only: what is no longer needed is deleted.
    properties = {name: text for name, text in PROPERTIES.items() if name != "delta.appendOnly"}
    create_table(spark, path, named.schema, properties=properties, partitions=("snapshot",))
    delta.append(named, path, note={"snapshot": snapshot.name})


def read_parts(spark: SparkSession, lake: Lake, snapshot: Snapshot) -> DataFrame | None:
    """The rows of a snapshot; None where it has none.

    Raises:
        NotWhole: There are not as many as were written.
    """
    if not snapshot.parts:
        return None
    path = lake.state(snapshot.pipeline)
    found = parts_of(lake, snapshot.pipeline).get(snapshot.name, 0)
    if found != snapshot.parts:
        raise NotWhole.create(
            f"snapshot {snapshot.name} has {found} of {snapshot.parts} rows in {path}",
            reason="rows are missing",
            snapshot=snapshot.name,
        )
    table = delta.load(spark, path)
    return table.where(F.col("snapshot") == snapshot.name).drop("snapshot")


def parts_of(lake: Lake, pipeline: str) -> dict[str, int]:
    """How many rows each snapshot has in the table of a pipeline's state, from its log alone."""
    path = lake.state(pipeline)
    if not is_table(path):
        return {}
    files = delta.open_table(path).get_add_actions(flatten=True)
    found: dict[str, int] = {}
    names, counts = files["partition.snapshot"].to_pylist(), delta.stat(files, "num_records")
    for name, rows in zip(names, counts, strict=True):
        found[name] = found.get(name, 0) + rows
    return found


def delete_parts(spark: SparkSession, lake: Lake, pipeline: str, names: list[str]) -> None:
    """Delete the rows of snapshots: whole files, as each has its own."""
    from delta.tables import DeltaTable

    path = lake.state(pipeline)
    table = DeltaTable.forPath(spark, path)
    with committing(path):
        table.delete(F.col("snapshot").isin(names))


def write_became(lake: Lake, pipeline: str, rows: list[Became]) -> None:
    """Append to the ledger what became of snapshots, in one commit."""
    told = [
        {
            "pipeline": pipeline,
            "snapshot": row.snapshot,
            "event": str(row.event),
            "peers": row.rescaled and row.rescaled.peers,
            "detail": row.rescaled and as_text(row.rescaled.to_json()),
        }
        for row in rows
    ]
    append_rows(lake, "snapshots", told)


def read_became(lake: Lake, pipeline: str) -> list[Became]:
    """What became of a pipeline's snapshots, in the order in which it was written."""
    found = []
    for row in read_rows(lake, "snapshots", pipeline=pipeline):
        detail = row["detail"]
        rescaled = None if detail is None else Snapshot.from_json(json.loads(str(detail)))
        found.append(Became(str(row["snapshot"]), Event(str(row["event"])), rescaled))
    return found
