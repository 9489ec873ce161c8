"""All runs of a lake, with the little that tells who may see each; details are read of few.

Pages list runs by tens, but have to know which of all runs a user may see. A process that serves
pages parses the details of a run once, for the replay that its request names.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from capstan.reporting.run_view import Owner, RunView, list_runs
from capstan.storage.delta.arrow_scan import read_columns
from capstan.storage.delta.incremental_read import Parts, read_incrementally
from capstan.storage.delta.opened_table import OpenedTable
from capstan.storage.delta.table_cache import cached
from capstan.storage.lake import Lake, is_table
from capstan.storage.ledger.runs import Step

_COLUMNS = ("run", "attempt", "step", "stream", "at")
_SCHEMA = pa.schema(
    [
        ("run", pa.string()), ("attempt", pa.int32()), ("step", pa.string()),
        ("stream", pa.string()), ("at", pa.timestamp("us", "UTC")), ("replay", pa.string()),
    ]
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RunHeads:
    """Some runs of a lake, the newest first."""

    lake: Lake
    # With columns `run`, `stream`, `replay`, `at` and `step`, the newest one.
    _runs: pa.Table

    def __len__(self) -> int:
        """The number of runs."""
        return int(self._runs.num_rows)

    @property
    def names(self) -> list[str]:
        """Their names."""
        return self._runs["run"].to_pylist()  # type: ignore[no-any-return]

    @property
    def owners(self) -> list[Owner]:
        """Their different owners."""
        pairs = self._runs.group_by(["stream", "replay"]).aggregate([])
        return [(row["stream"], row["replay"]) for row in pairs.to_pylist()]

    def owned_by(self, owners: Collection[Owner]) -> RunHeads:
        """Those of some owners."""
        schema = self._runs.select(["stream", "replay"]).schema
        chosen = pa.Table.from_pylist([{"stream": s, "replay": r} for s, r in owners], schema)
        named = _keys(self._runs)
        return RunHeads(self.lake, self._runs.filter(pc.is_in(named, value_set=_keys(chosen))))

    @property
    def by_stream(self) -> dict[str, int]:
        """Their number by stream."""
        counted = self._runs.group_by("stream").aggregate([("run", "count")]).to_pylist()
        return {row["stream"]: row["run_count"] for row in counted}

    def at_step(self, *steps: Step) -> RunHeads:
        """Those whose newest step is one of these; of runs that have published, it is `done`."""
        wanted = pa.array(map(str, steps), pa.string())
        return RunHeads(
            self.lake, self._runs.filter(pc.is_in(self._runs["step"], value_set=wanted))
        )

    def since(self, moment: datetime) -> RunHeads:
        """Those with a step at or after a moment."""
        bound = pa.scalar(moment, pa.timestamp("us", "UTC"))
        return RunHeads(self.lake, self._runs.filter(pc.greater_equal(self._runs["at"], bound)))

    def without(self, names: Collection[str]) -> RunHeads:
        """Those that have other names."""
        named = pc.is_in(self._runs["run"], value_set=pa.array(names, pa.string()))
        return RunHeads(self.lake, self._runs.filter(pc.invert(named)))

    def moments(self, count: int) -> dict[str, datetime]:
        """The names of the newest ones, with the times of their newest steps."""
        newest = self._runs.slice(0, count)
        return dict(zip(newest["run"].to_pylist(), newest["at"].to_pylist(), strict=True))

    def views(self, first: int, count: int) -> list[RunView]:
        """A part of them, with all details."""
        names = self._runs["run"].slice(first, count).to_pylist()
        return list_runs(self.lake, run=tuple(names)) if names else []


def read_heads(lake: Lake) -> RunHeads:
    """All runs of a lake that have recorded a step."""
    path = lake.ledger("runs")
    if not is_table(path):
        return RunHeads(lake, _SCHEMA.empty_table())
    return RunHeads(lake, cached("run heads", path, lambda: _heads(path)))


def _heads(path: str) -> pa.Table:
    steps = read_incrementally("run steps", path, _add_steps)["steps"].sort_by("at")
    intents = steps.filter(pc.equal(steps["step"], str(Step.INTENT)))
    done = steps.filter(pc.equal(steps["step"], str(Step.DONE)))
    runs = _last(steps, ["run"], "stream", "at", "step")
    # As `History.effective_intent`: of the attempt that has published, or else the newest; and the
    # first one if that attempt has none.
    newest = _last(intents, ["run"], "replay").rename_columns(["run", "newest"])
    first = _last(intents.take(_backwards(intents)), ["run"], "replay")
    published = _last(done, ["run"], "attempt")
    of_attempts = _last(intents, ["run", "attempt"], "replay", "step")
    effective = published.join(of_attempts, ["run", "attempt"])
    effective = effective.rename_columns(["run", "attempt", "effective", "known"])
    for more in (newest, first.rename_columns(["run", "first"]), effective):
        runs = runs.join(more, "run")
    known, is_done = pc.is_valid(runs["known"]), pc.is_valid(runs["attempt"])
    fallback = pc.if_else(is_done, runs["first"], runs["newest"])
    replay = pc.if_else(known, runs["effective"], fallback)
    # An attempt that lost its claim may record its end after its successor has published.
    step = pc.if_else(is_done, str(Step.DONE), runs["step"])
    return (
        runs.select(["run", "stream", "at"])
        .append_column("replay", replay)
        .append_column("step", step)
        .sort_by([("at", "descending")])
    )


def _last(rows: pa.Table, keys: list[str], *values: str) -> pa.Table:
    # A null is a value like others: a request may name no replay.
    last = pc.ScalarAggregateOptions(skip_nulls=False)
    grouped = rows.group_by(keys, use_threads=False).aggregate([(v, "last", last) for v in values])
    return grouped.select([*keys, *(f"{v}_last" for v in values)]).rename_columns([*keys, *values])


def _backwards(rows: pa.Table) -> pa.Array:
    return pa.array(range(rows.num_rows - 1, -1, -1), pa.int64())


def _add_steps(earlier: Parts, opened: OpenedTable, files: Sequence[str]) -> Parts:
    """The steps of all runs, with what their details say of the request or the attempt."""
    found = read_columns(opened.path, [*_COLUMNS, "detail"], opened, files)
    rows = [_head(row) for row in found.to_pylist()]
    added = pa.Table.from_pylist(rows, schema=_SCHEMA)
    return {"steps": pa.concat_tables([earlier["steps"], added]) if earlier else added}


def _head(row: dict[str, object]) -> dict[str, object]:
    text, step = str(row.pop("detail")), row["step"]
    if step not in (Step.INTENT, Step.DONE):
        return row
    detail = json.loads(text)
    if step == Step.DONE:
        # That of the attempt which has published, whichever has recorded it.
        return {**row, "attempt": detail.get("attempt", row["attempt"])}
    request = detail.get("request")
    replay = request.get("replay") if isinstance(request, Mapping) else None
    return {**row, "replay": replay if isinstance(replay, str) else None}


def _keys(runs: pa.Table) -> pa.ChunkedArray:
    """A text for each run, which is the same for the same owner and for no other one."""
    length = pc.binary_length(runs["stream"]).cast(pa.string())
    named = pc.is_valid(runs["replay"]).cast(pa.string())
    replay = pc.fill_null(runs["replay"], "")
    return pc.binary_join_element_wise(length, runs["stream"], named, replay, " ")
