"""Catalog of the snapshots of followed pipelines, read without a JVM."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from capstan.replay.snapshots.ledger import Snapshot, SnapshotAction, SnapshotEvent, read_events
from capstan.storage.lake import Lake
from capstan.storage.ledger import runs
from capstan.storage.ledger.runs import History


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
