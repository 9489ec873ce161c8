"""The computation of a replay: its kinds, of which a copy and a transform are here."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from pyspark.sql import DataFrame, SparkSession

from capstan.audit import Shape
from capstan.audit.cells import promised_cells
from capstan.core.config import Target, Transform
from capstan.core.sql_names import quoted
from capstan.core.times import Antichain, Box, Kind, TimeType
from capstan.core.times.region import Region
from capstan.errors import InvalidRequestError, translation
from capstan.pipeline.operators.time_buffer import units
from capstan.replay.planning.lookup_input import LookupInput, Pin
from capstan.replay.planning.stream_input import Inputs, require_all_workers, require_same_workers
from capstan.replay.planning.target_layout import Layout
from capstan.replay.snapshots import Snapshot
from capstan.storage.tape.grains import require_multiples
from capstan.storage.tape.tape import Tape, stored_payload

# Spark's error classes for bad data, and for errors that a query raises itself.
_DATA_ERROR = re.compile(r"SQLSTATE: (?:22|P0)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Computation:
    """What plans, ledgers, audits and targets ask a computation; `output.rows` runs it."""

    kind: ClassVar[str]

    title: str  # The name in messages: `transform by_day`, `pipeline late_carriers at days`.
    name: str  # The name in the ledgers: `by_day`, `late_carriers.days`; empty for a copy.
    code: str  # The hash of its code and settings; empty for a copy.
    time: str | None  # The output column that stands for the time; None when it keeps none.
    worker: str | None  # The column of the captured worker; None when rows mix several workers.
    grain: int = 1  # Ranges must be multiples of this many units of the coordinate.
    keys: tuple[str, ...] = ()  # The columns that identify a row within a time.
    worker_source: str | None = None  # The source whose workers `worker` has; None for all.
    lookups: tuple[LookupInput, ...] = ()  # The lookup tables that a pipeline reads.
    resumed: Snapshot | None = None  # The snapshot of an earlier run from which a pipeline resumes.
    state_name: str | None = None  # The name under which followed runs keep state.
    transform: Transform | None = None  # The registered transform; None for others.

    @property
    def lookup_pins(self) -> Mapping[str, Pin]:
        """The pinned versions of lookup tables, by the lookup's name."""
        return {each.lookup.name: each.pin for each in self.lookups}

    @property
    def reads_stamp(self) -> bool:
        """Whether its records have the column `_stamp`."""
        return self.transform is not None and self.transform.reads_stamp

    def time_type(self, tape: TimeType) -> TimeType:
        """The times of the rows that it writes; `tape` are those of the stream."""
        return tape

    def axes(self, tape: TimeType) -> tuple[int, ...]:
        """The positions of the coordinates of its rows' times in those of the stream."""
        return tuple(map(tape.index, self.time_type(tape).names))

    def project(self, box: Box) -> Box:
        """A range of the stream's times, in the coordinates of the rows that it writes."""
        return box

    def reads(self, region: Region) -> Region:
        """The times of the records that it reads to write the rows of a region."""
        return region

    def sources(self, box: Box, _tape: TimeType) -> Box:
        """The times of the records that can have rows in a range of its rows."""
        return box

    def step(self, step: int) -> int:
        """The step to which the times of its rows are truncated, as the stream's are to `step`."""
        return step

    def at(self, _region: Region) -> Computation:
        """The same computation, for the rows of a region."""
        return self

    def over(self, _inputs: Inputs, _box: Box) -> Computation:
        """The same computation, over the streams at other cuts."""
        return self

    def require_grain(self, time_type: TimeType, box: Box) -> None:
        """Check that a range consists of whole grains."""
        at = self.coordinate(time_type)
        bounds = (box.since[at], box.until[at])
        require_multiples(f"{self.title} works", time_type.coordinates[at], bounds, self.grain)

    def require_scope(self, inputs: Inputs, *, timeless: bool) -> None:
        """Check that it makes the rows of the chosen workers, and of a range, apart from others."""
        if self.worker is not None:
            require_all_workers(inputs.others, self.title)
            require_same_workers(inputs.keepers, self.title)
        elif not inputs.everyone:
            raise InvalidRequestError(
                "CAP-WORKERS",
                f"{self.title} mixes workers: its output has no column of the worker",
                "replay all workers, or have it keep the worker and declare the column",
            )
        if timeless:
            raise InvalidRequestError(
                "CAP-TIMELESS",
                f"{self.title} keeps no time, so no range of its output can be replaced",
                "replace all of it (no range), or use mode append or merge",
            )

    def is_complete(self, box: Box, frontier: Antichain) -> bool:
        """Whether no further record under a frontier can change the rows of a range."""
        return box.is_complete(frontier)

    def coordinate(self, tape: TimeType) -> int:
        """The position of the coordinate that is the event time."""
        return len(tape.coordinates) - 1

    def written_until(self, tape: TimeType, frontier: Antichain) -> Antichain:
        """The end of the rows that can be written: whole grains under a frontier."""
        last = len(tape.coordinates) - 1
        if self.grain == 1 or tape.coordinates[last].kind is not Kind.TIMESTAMP:
            return frontier
        return Antichain.of(
            (*time[:last], time[last] - time[last] % self.grain) for time in frontier.elements
        )

    def identity_parts(self, _region: Region) -> dict[str, object]:
        """What the identity of a run has besides name and code."""
        return {}

    def to_json(self, _counters: Mapping[str, object] | None = None) -> dict[str, object] | None:
        """A pipeline as certificates and plans show it; else None."""
        return None

    def failure(self, _error: Exception, _stream: str) -> InvalidRequestError | None:
        """The error of its code that fails on the data of a record; None for other errors."""
        return None

    def worker_column(self, _tape: Tape, layout: Layout) -> str | None:
        """The column of its rows that has the label of the captured worker."""
        return layout.worker

    def tagged(self, layout: Layout, rows: DataFrame, tape: TimeType) -> DataFrame:
        """Its rows, those of a copy with `_worker` and `_time` as on tape."""
        return rows

    def record_shape(
        self, _tape: Tape, _declared: Target | None, _columns: Collection[str]
    ) -> Shape | None:
        """The columns of tagged rows that are records of the tape; None when rows are computed."""
        return None

    def own_time(self, _layout: Layout) -> str | None:
        """The column of records that a target takes their time from; None when it has `_time`."""
        return None

    def promised_cells(
        self,
        spark: SparkSession,
        inputs: Inputs,
        region: Region,
        shape: Shape,
        columns: Sequence[str],
    ) -> DataFrame | None:
        """The cells of its rows from the index alone; None when only the rows tell them."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyComputation(Computation):
    """A copy of the records.

    When a run is rolled back, this also stands for its transform, which may have changed since:
    `name` and `code` are then those that the run recorded.
    """

    kind: ClassVar[str] = "copy"

    @classmethod
    def into(cls, declared: Target | None) -> Self:
        """A copy into a target, whose declaration may name the columns of worker and time."""
        worker, time = (
            ("_worker", "_time") if declared is None else (declared.worker, declared.time)
        )
        return cls(title="a copy", name="", code="", time=time, worker=worker)

    def require_scope(self, inputs: Inputs, *, timeless: bool) -> None:
        """Nothing: any records of its stream can be copied."""

    def worker_column(self, tape: Tape, _layout: Layout) -> str | None:
        """The column of the records that the workers were made from, if there is one."""
        return tape.worker_column

    def tagged(self, layout: Layout, rows: DataFrame, tape: TimeType) -> DataFrame:
        """Its rows with `_worker` and `_time` as on tape."""
        return layout.tagged(rows, tape)

    def record_shape(self, tape: Tape, declared: Target | None, columns: Collection[str]) -> Shape:
        """The columns of worker, time and data of its tagged rows."""
        wanted = (declared and declared.columns) or stored_payload(tape).names
        return tagged_shape(tape.time_type, tuple(name for name in wanted if name in columns))

    def own_time(self, layout: Layout) -> str | None:
        """The column of the records that a target takes their time from."""
        return None if layout.time == "_time" else layout.time

    def promised_cells(
        self,
        spark: SparkSession,
        inputs: Inputs,
        region: Region,
        shape: Shape,
        columns: Sequence[str],
    ) -> DataFrame | None:
        """The cells of the records, when all of their columns are compared."""
        if not shape.worker or list(columns) != stored_payload(inputs.tape).names:
            return None
        return promised_cells(spark, inputs.tape, inputs.cut, inputs.workers, region, shape)


def tagged_shape(time_type: TimeType, columns: tuple[str, ...]) -> Shape:
    """The columns of rows that are tagged with `_worker` and `_time`, with these data."""
    times = tuple(f"`_time`.{quoted(name)}" for name in time_type.names)
    return Shape("_worker", times, columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformComputation(Computation):
    """A registered transform."""

    kind: ClassVar[str] = "transform"

    transform: Transform

    @classmethod
    def of(cls, transform: Transform) -> Self:
        """The computation of a transform."""
        return cls(
            title=f"transform {transform.name}",
            name=transform.name,
            code=transform.code_hash,
            time=transform.time,
            worker=transform.worker,
            grain=1 if transform.grain is None else units(transform.grain),
            keys=transform.keys,
            transform=transform,
        )

    def failure(self, error: Exception, stream: str) -> InvalidRequestError | None:
        """The error of a transform that fails on the data of a record; None for other errors."""
        if not _DATA_ERROR.search(str(error)):
            return None
        return InvalidRequestError(
            "CAP-TRANSFORM",
            f"{self.title} fails for a record of stream {stream}: "
            f"{translation.root_message(error)}",
            "use functions that do not fail (try_divide, try_cast), or exclude such records with "
            "WHERE",
        )
