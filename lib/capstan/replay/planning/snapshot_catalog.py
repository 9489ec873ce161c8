"""Which snapshots there are of followed pipelines, and which one a run goes on from. No JVM."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from capstan.replay.planning.snapshot_ledger import Became, Event, Snapshot, read_became
from capstan.storage.lake import Lake
from capstan.storage.ledger import runs
from capstan.storage.ledger.runs import History


@dataclass(frozen=True, slots=True)
class Taken:
    """A snapshot that counts, or has counted: its run has published.

    Attributes:
        snapshot: What the run's certificate says of it.
        history: The run.
        rescaled: What it was rescaled to, by replay workers.
        newest: The replay workers that it is of now: of its newest rescaling, else its own.
        cleared: Whether its rows were deleted.
    """

    snapshot: Snapshot
    history: History
    rescaled: Mapping[int, Snapshot]
    newest: int
    cleared: bool

    @property
    def name(self) -> str:
        """The snapshot's name."""
        return self.snapshot.name

    @property
    def order(self) -> tuple[str, int]:
        """The target, and which of the replays into it that follow each other."""
        return self.history.last.target, self.history.last.generation

    @property
    def standing(self) -> bool:
        """Whether a run could go on from it: it is there, and its run was not taken back."""
        return self.history.published and not self.cleared

    def on(self, peers: int | None) -> Snapshot:
        """The snapshot on so many replay workers if it is there so, else as it is now."""
        every = {self.snapshot.peers: self.snapshot, **self.rescaled}
        return every.get(peers or self.newest, every[self.newest])


def snapshot_of(history: History) -> Snapshot | None:
    """The snapshot that a run's certificate tells of."""
    pipeline = (history.certificate or {}).get("pipeline")
    state = pipeline.get("state") if isinstance(pipeline, Mapping) else None
    return Snapshot.from_json(state) if isinstance(state, Mapping) else None


def find_snapshot(lake: Lake, last: History, peers: int | None) -> Snapshot | None:
    """The snapshot that the next run goes on from; None where there is none, or it was cleared.

    Args:
        lake: The lake.
        last: The last run that stands.
        peers: The replay workers that are wanted; one of as many is chosen if there is one.
    """
    snapshot = snapshot_of(last)
    if snapshot is None:
        return None
    taken = _taken(snapshot, last, read_became(lake, snapshot.pipeline))
    return taken.on(peers) if taken.standing else None


def list_taken(lake: Lake, pipeline: str, **equal: object) -> list[Taken]:
    """The snapshots of a pipeline's runs that have published, the newest of each target last.

    Args:
        lake: The lake.
        pipeline: The pipeline's name.
        equal: Only of runs with these values in the ledger's columns.
    """
    became = read_became(lake, pipeline)
    found = []
    for history in runs.read_histories(lake, **equal).values():
        snapshot = snapshot_of(history)
        if snapshot is not None and snapshot.pipeline == pipeline:
            found.append(_taken(snapshot, history, became))
    return sorted(found, key=lambda each: each.order)


def _taken(snapshot: Snapshot, history: History, became: Iterable[Became]) -> Taken:
    mine = [row for row in became if row.snapshot == snapshot.name]
    rescaled = [row.rescaled for row in mine if row.event is Event.RESCALED and row.rescaled]
    return Taken(
        snapshot,
        history,
        {each.peers: each for each in rescaled},
        rescaled[-1].peers if rescaled else snapshot.peers,
        any(row.event is Event.CLEARED for row in mine),
    )
