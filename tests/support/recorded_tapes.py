"""Complete tapes of many commits, written without a JVM: the longest that a page may read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import deltalake
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from capstan.core.times import Kind, TimeType
from capstan.storage.delta.arrow_writer import arrow_schema
from capstan.storage.lake import Lake
from capstan.storage.ledger.tables import SCHEMAS

EVENT = TimeType.of(event=Kind.TIMESTAMP)
START = datetime(2024, 5, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)

_MOMENT = pa.timestamp("us", "UTC")
_TIME = pa.struct([("event", _MOMENT)])
_UPDATE = pa.struct([("time", _TIME), ("diff", pa.int64())])
_CONTENT = pa.struct([("h1", pa.int64()), ("h2", pa.int64())])
_EVENTS = pa.schema(
    [
        ("worker", pa.int32()), ("seq", pa.int64()), ("kind", pa.string()), ("time", _TIME),
        ("updates", pa.list_(_UPDATE)), ("batch", pa.int64()), ("commit", pa.int64()),
        ("records", pa.int64()), ("fingerprint", _CONTENT),
    ]
)  # fmt: skip
_DATA = pa.struct([("n", pa.int64())])
_RECORDS = pa.schema(
    [
        ("worker", pa.int32()), ("batch", pa.int64()), ("time", _TIME), ("pos", pa.int64()),
        ("data", _DATA),
    ]
)  # fmt: skip
_LATE = pa.schema(
    [
        ("worker", pa.int32()), ("batch", pa.int64()), ("time", _TIME), ("pos", pa.int64()),
        ("reason", pa.string()), ("frontier", pa.list_(_TIME)), ("data", _DATA),
    ]
)  # fmt: skip
_WORKERS = pa.schema(
    [("worker", pa.int32()), ("label", pa.string()), ("opened_commit", pa.int64())]
)
_VERIFIED = arrow_schema(SCHEMAS["verified"])
_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Recorded:
    """A tape whose workers repeatedly send one record and advance by one step.

    Event 0 of a worker drops the minimum. Each further pair of events is a message at the held
    time, and progress to the next time.

    Attributes:
        name: The stream.
        labels: Labels of its workers.
        commits: Number of commits in its index.
        pairs: Pairs of events per commit and worker.
        step: Distance between times.
        slower: By worker, the steps by which each commit falls behind; it sends nothing then.
        late: Late rows by reason.
    """

    name: str
    labels: Sequence[str]
    commits: int = 4
    pairs: int = 6
    step: timedelta = HOUR
    slower: Mapping[int, int] | None = None
    late: Mapping[str, int] | None = None

    @property
    def events(self) -> int:
        """Number of events on the tape."""
        return sum(2 * self._pairs(w) * self.commits + 1 for w in range(len(self.labels)))

    def frontier(self, worker: int, commit: int) -> datetime:
        """The held time of a worker after a commit."""
        return START + self._pairs(worker) * (commit + 1) * self.step

    def lay(self, lake: Lake) -> None:
        """Write its tables."""
        paths = lake.stream(self.name)
        properties = {
            "capstan.format": "1",
            "capstan.stream": self.name,
            "capstan.time": json.dumps(EVENT.to_json()),
            "capstan.settings": "{}",
            # As captures set it: a tape whose log has no checkpoint is read more slowly.
            "delta.checkpointInterval": "10",
        }
        roster = {
            "worker": range(len(self.labels)),
            "label": list(self.labels),
            "opened_commit": [0] * len(self.labels),
        }
        write(paths.workers, pa.table(roster, schema=_WORKERS))
        write(paths.records, _RECORDS.empty_table())
        reasons = [reason for reason, count in (self.late or {}).items() for _ in range(count)]
        late = [{"worker": 0, "batch": 0, "pos": i, "reason": r} for i, r in enumerate(reasons)]
        write(paths.late, pa.Table.from_pylist(late, schema=_LATE))
        for commit in range(self.commits):
            parts = [self._events(worker, commit) for worker in range(len(self.labels))]
            write(paths.events, pa.concat_tables(parts), properties)

    def verified(self, lake: Lake, commit: int, at: datetime) -> None:
        """Record all its recordings as verified up to a commit."""
        tape = str(deltalake.DeltaTable(lake.stream(self.name).events).metadata().id)
        rows = [
            {
                "stream": self.name, "tape": tape, "worker": worker, "commit": commit,
                "events": 1 + 2 * self._pairs(worker) * (commit + 1),
                "holdings": "[]", "at": at, "valid": True,
            }
            for worker in range(len(self.labels))
        ]  # fmt: skip
        write(lake.ledger("verified"), pa.Table.from_pylist(rows, schema=_VERIFIED))

    def _pairs(self, worker: int) -> int:
        return self.pairs - (self.slower or {}).get(worker, 0)

    def _events(self, worker: int, commit: int) -> pa.Table:
        many = self._pairs(worker)
        numbers = np.arange(commit * many, (commit + 1) * many, dtype=np.int64)
        begin, step = int(START.timestamp()) * 1_000_000, self.step // timedelta(microseconds=1)
        times = begin + numbers * step
        messages = np.tile(np.array([True, False]), many)
        froms, tos = times, times + step
        if commit == 0:
            minimum = EVENT.minimum[0]
            messages = np.concatenate([[False], messages])
            froms, tos = np.concatenate([[minimum], froms]), np.concatenate([[begin], tos])
        rows = messages.size
        sent = np.zeros(rows, np.int64)
        sent[messages] = times
        ones = pa.array(np.ones(rows, np.int64))
        kinds = pa.array(np.where(messages, "messages", "progress"))
        first = 0 if commit == 0 else 1 + 2 * commit * many
        counted = pa.array(np.where(messages, 1, 0), mask=~messages)
        columns = [
            pa.array(np.full(rows, worker, np.int32)),
            pa.array(np.arange(first, first + rows, dtype=np.int64)),
            kinds.cast(pa.string()),
            _times(sent, ~messages),
            _updates(froms, tos, messages),
            pa.array(np.full(rows, commit, np.int64)),
            pa.array(np.full(rows, commit, np.int64)),
            counted,
            pa.StructArray.from_arrays(
                [ones, ones], fields=list(_CONTENT), mask=pa.array(~messages)
            ),
        ]
        return pa.table(columns, schema=_EVENTS)


def _times(values: _Ints, missing: npt.NDArray[np.bool_] | None = None) -> pa.StructArray:
    moments = pa.array(values).cast(_MOMENT)
    mask = None if missing is None else pa.array(missing)
    return pa.StructArray.from_arrays([moments], fields=list(_TIME), mask=mask)


def _updates(froms: _Ints, tos: _Ints, messages: npt.NDArray[np.bool_]) -> pa.ListArray:
    """For each progress event, in order: one time dropped, another taken up."""
    times = np.stack([froms, tos], axis=1).ravel()
    diffs = np.tile(np.array([-1, 1], np.int64), froms.size)
    values = pa.StructArray.from_arrays([_times(times), pa.array(diffs)], fields=list(_UPDATE))
    ends = np.cumsum(np.where(messages, 0, 2)).astype(np.int32)
    offsets = pa.array(np.concatenate([[0], ends]).astype(np.int32))
    return pa.ListArray.from_arrays(
        offsets, values, type=pa.list_(_UPDATE), mask=pa.array(messages)
    )


def write(path: str, table: pa.Table, properties: Mapping[str, str | None] | None = None) -> None:
    """Append rows to a Delta table in one commit, creating it if it does not exist."""
    if not deltalake.DeltaTable.is_deltatable(path):
        deltalake.DeltaTable.create(
            path, table.schema, configuration=dict(properties or {}), raise_if_key_not_exists=False
        )
    if table.num_rows:
        deltalake.write_deltalake(path, table, mode="append")
