"""Snapshots of the state of followed pipelines: a table per pipeline, and a ledger of events.

The rows of a snapshot are written before the target, under the name of the attempt. The snapshot
counts once the run has published by that attempt: the run's last row commits it, and rolling back
the run discards it. The run's certificate holds the expected contents of a snapshot.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from capstan.core.times import Antichain, Time
from capstan.pipeline.state.errors import NotWhole
from capstan.storage.delta import delta
from capstan.storage.delta.commit_lock import committing
from capstan.storage.delta.table_creation import create_table
from capstan.storage.lake import Lake, is_table
from capstan.storage.ledger import runs
from capstan.storage.ledger.runs import History
from capstan.storage.ledger.tables import PROPERTIES, append_rows, as_text, read_rows


class SnapshotAction(StrEnum):
    """An event of a snapshot after it was taken."""

    RESCALED = "rescaled"
    CLEARED = "cleared"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The description of a snapshot, without its rows."""

    name: str  # `RUN-ATTEMPT`, such as `hours-3f2a9c1b-4-1`; rescaled to 5 workers `..@5`.
    pipeline: str
    peers: int
    frontier: Antichain  # That of the captured workers: all times before it have been read.
    last: int
    parts: int = 0  # The number of its rows in the table of the pipeline's state.
    rows: int = 0
    waiting: int = 0  # Output rows of the sink that wait for their time to be written.
    bytes: int = 0
    held: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # By worker and operator.
    before: int | None = None  # The replay workers before the rescaling.
    signatures: Mapping[str, Mapping[str, str]] | None = None  # Only the same resume.

    @property
    def keys(self) -> dict[str, int]:
        """The number of keys with state by operator; each key is held by one worker."""
        total = Counter[str]()
        for keys in self.held.values():
            total.update(keys)
        return dict(total)

    def to_json(self) -> dict[str, object]:
        """The object that certificates and the ledger store."""
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
            and {name: dict(settings) for name, settings in self.signatures.items()},
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The snapshot that `to_json` wrote; unknown keys are ignored."""
        values: dict[str, Any] = {entry.name: value.get(entry.name) for entry in fields(cls)}
        values["name"] = value["snapshot"]
        values["frontier"] = Antichain.of(map(Time, value["frontier"]))
        return cls(**values)


@dataclass(frozen=True, slots=True)
class SnapshotEvent:
    """An event of a snapshot, as a row of the ledger."""

    snapshot: str
    event: SnapshotAction
    rescaled: Snapshot | None = None  # The rescaled snapshot; None for other events.


def write_parts(spark: SparkSession, lake: Lake, snapshot: Snapshot, rows: DataFrame) -> None:
    """Append the rows of a snapshot (`state_rows.COLUMNS`) in one commit."""
    path = lake.state(snapshot.pipeline)
    named = rows.select(F.lit(snapshot.name).alias("snapshot"), *rows.columns)
    # Not append-only: obsolete snapshots are deleted.
    properties = {name: text for name, text in PROPERTIES.items() if name != "delta.appendOnly"}
    create_table(spark, path, named.schema, properties=properties, partitions=("snapshot",))
    delta.append(named, path, note={"snapshot": snapshot.name})


def read_parts(spark: SparkSession, lake: Lake, snapshot: Snapshot) -> DataFrame | None:
    """The rows of a snapshot; None when it has none."""
    if not snapshot.parts:
        return None
    path = lake.state(snapshot.pipeline)
    present = parts_of(lake, snapshot.pipeline).get(snapshot.name, 0)
    if present != snapshot.parts:
        raise NotWhole.create(
            f"snapshot {snapshot.name} has {present} of {snapshot.parts} rows in {path}",
            reason="rows are missing",
            snapshot=snapshot.name,
        )
    table = delta.load(spark, path)
    return table.where(F.col("snapshot") == snapshot.name).drop("snapshot")


def parts_of(lake: Lake, pipeline: str) -> dict[str, int]:
    """The number of rows by snapshot in the table of a pipeline's state, from its log alone."""
    path = lake.state(pipeline)
    if not is_table(path):
        return {}
    files = delta.open_table(path).get_add_actions(flatten=True)
    parts: dict[str, int] = {}
    names, counts = files["partition.snapshot"].to_pylist(), delta.stat(files, "num_records")
    for name, rows in zip(names, counts, strict=True):
        parts[name] = parts.get(name, 0) + rows
    return parts


def delete_parts(spark: SparkSession, lake: Lake, pipeline: str, names: list[str]) -> None:
    """Delete the rows of snapshots; whole files, as snapshots are partitions."""
    from delta.tables import DeltaTable

    path = lake.state(pipeline)
    table = DeltaTable.forPath(spark, path)
    with committing(path):
        table.delete(F.col("snapshot").isin(names))


def write_events(lake: Lake, pipeline: str, rows: list[SnapshotEvent]) -> None:
    """Append events of snapshots to the ledger, in one commit."""
    values = [
        {
            "pipeline": pipeline,
            "snapshot": row.snapshot,
            "event": str(row.event),
            "peers": row.rescaled and row.rescaled.peers,
            "detail": row.rescaled and as_text(row.rescaled.to_json()),
        }
        for row in rows
    ]
    append_rows(lake, "snapshots", values)


def read_events(lake: Lake, pipeline: str) -> list[SnapshotEvent]:
    """The events of a pipeline's snapshots, in the order in which they were written."""
    events = []
    for row in read_rows(lake, "snapshots", pipeline=pipeline):
        detail = row["detail"]
        rescaled = None if detail is None else Snapshot.from_json(json.loads(str(detail)))
        events.append(
            SnapshotEvent(str(row["snapshot"]), SnapshotAction(str(row["event"])), rescaled)
        )
    return events


@dataclass(frozen=True, slots=True)
class Taken:
    """A snapshot whose run has published."""

    snapshot: Snapshot
    history: History
    rescaled: Mapping[int, Snapshot]  # Rescaled snapshots by their number of replay workers.
    newest: int  # The number of replay workers of the newest rescaling, else its own.
    cleared: bool  # Whether its rows were deleted.

    @property
    def name(self) -> str:
        """The snapshot's name."""
        return self.snapshot.name

    @property
    def order(self) -> tuple[str, int]:
        """The target and the generation of the run, to sort by."""
        return self.history.last.target, self.history.last.generation

    @property
    def standing(self) -> bool:
        """Whether a run can resume from it: it is not deleted, and its run is published."""
        return self.history.published and not self.cleared

    def on(self, peers: int | None) -> Snapshot:
        """The snapshot for this number of replay workers if it exists, else the newest one."""
        by_peers = {self.snapshot.peers: self.snapshot, **self.rescaled}
        return by_peers.get(peers or self.newest, by_peers[self.newest])


def snapshot_of(history: History) -> Snapshot | None:
    """The snapshot in a run's certificate; None for none."""
    certificate = history.certificate
    state = None if certificate is None else (certificate.pipeline or {}).get("state")
    return None if state is None else Snapshot.from_json(state)


def find_snapshot(lake: Lake, last: History, peers: int | None) -> Snapshot | None:
    """The snapshot, preferably for `peers`, from which the next run resumes; None without one."""
    snapshot = snapshot_of(last)
    if snapshot is None:
        return None
    taken = _taken(snapshot, last, read_events(lake, snapshot.pipeline))
    return taken.on(peers) if taken.standing else None


def list_taken(lake: Lake, pipeline: str, **equal: object) -> list[Taken]:
    """The snapshots of a pipeline's published runs, the newest of each target last."""
    events = read_events(lake, pipeline)
    snapshots = []
    for history in runs.read_histories(lake, **equal).values():
        snapshot = snapshot_of(history)
        if snapshot is not None and snapshot.pipeline == pipeline:
            snapshots.append(_taken(snapshot, history, events))
    return sorted(snapshots, key=lambda taken: taken.order)


def _taken(snapshot: Snapshot, history: History, events: Iterable[SnapshotEvent]) -> Taken:
    rows = [row for row in events if row.snapshot == snapshot.name]
    rescaled = [
        row.rescaled for row in rows if row.event is SnapshotAction.RESCALED and row.rescaled
    ]
    return Taken(
        snapshot,
        history,
        {other.peers: other for other in rescaled},
        rescaled[-1].peers if rescaled else snapshot.peers,
        any(row.event is SnapshotAction.CLEARED for row in rows),
    )
