"""All runs of a lake, with the little that they are found by; details are read of few.

Pages list runs by tens, but have to know which of all runs a user may see, and which of them are
looked for. A process that serves pages parses the details of a run once, for the replay that its
request names.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time

import pyarrow as pa
import pyarrow.compute as pc

from capstan.core.config import split_streams
from capstan.reporting.formatting import short_target
from capstan.reporting.lists.paging import ListPage, first_of
from capstan.reporting.lists.run_search import RunSearch
from capstan.reporting.run_view import Owner, RunView, list_runs
from capstan.storage.delta.arrow_scan import read_columns
from capstan.storage.delta.incremental_read import Parts, read_incrementally
from capstan.storage.delta.opened_table import OpenedTable
from capstan.storage.delta.table_cache import cached
from capstan.storage.lake import Lake, is_table
from capstan.storage.ledger import claims
from capstan.storage.ledger.runs import Step
from capstan.storage.ledger.tables import read_places

_COLUMNS = ("run", "attempt", "step", "stream", "target", "at")
_SCHEMA = pa.schema(
    [
        ("run", pa.string()), ("attempt", pa.int32()), ("step", pa.string()),
        ("stream", pa.string()), ("target", pa.string()), ("at", pa.timestamp("us", "UTC")),
        ("replay", pa.string()),
    ]
)  # fmt: skip
_BEGUN, _STOPPED = "begun", "stopped"
_SORTED_BY = {"when": "at"}


@dataclass(frozen=True, slots=True)
class RunHeads:
    """Some runs of a lake, the newest first."""

    lake: Lake
    _runs: pa.Table  # with columns `run`, `stream`, `replay`, `table`, `state` and `at`

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

    @property
    def tables(self) -> list[str]:
        """The different tables that they write, sorted."""
        return sorted(pc.unique(self._runs["table"]).to_pylist())

    @property
    def states(self) -> list[str]:
        """The different states that they are in, sorted."""
        return sorted(pc.unique(self._runs["state"]).to_pylist())

    @property
    def streams(self) -> list[str]:
        """The different streams that they read, sorted."""
        texts = pc.unique(self._runs["stream"]).to_pylist()
        return sorted({name for text in texts for name in split_streams(text)})

    def owned_by(self, owners: Collection[Owner]) -> RunHeads:
        """Those of some owners."""
        schema = self._runs.select(["stream", "replay"]).schema
        chosen = pa.Table.from_pylist([{"stream": s, "replay": r} for s, r in owners], schema)
        named = _keys(self._runs)
        return self._filtered(pc.is_in(named, value_set=_keys(chosen)))

    def named(self, names: Collection[str]) -> RunHeads:
        """Those with one of some names."""
        return self._filtered(pc.is_in(self._runs["run"], value_set=pa.array(names, pa.string())))

    def found(self, search: RunSearch) -> RunHeads:
        """Those that a search finds, in its order."""
        found, midnight = self, time(tzinfo=UTC)
        for name in ("table", "state"):
            if wanted := getattr(search, name):
                found = found._filtered(pc.equal(found._runs[name], wanted))
        if search.stream:
            texts = pc.unique(found._runs["stream"]).to_pylist()
            reading = pa.array([text for text in texts if search.stream in split_streams(text)],
                               pa.string())  # fmt: skip
            found = found._filtered(pc.is_in(found._runs["stream"], value_set=reading))
        if search.since is not None:
            begin = datetime.combine(search.since, midnight)
            found = found._filtered(pc.greater_equal(found._runs["at"], pa.scalar(begin)))
        if search.until is not None:
            end = datetime.combine(search.until, time.max, UTC)
            found = found._filtered(pc.less_equal(found._runs["at"], pa.scalar(end)))
        if search.text:
            named = pc.binary_join_element_wise(
                *(found._runs[name] for name in ("run", "stream", "table")), "\n"
            )
            found = found._filtered(pc.match_substring(named, search.text, ignore_case=True))
        column, descending = search.sorted_by
        order = [(_SORTED_BY.get(column, column), "descending" if descending else "ascending")]
        newest = [] if column == "when" else [("at", "descending")]
        return RunHeads(found.lake, found._runs.sort_by([*order, *newest]))

    def page(self, search: RunSearch, number: int, size: int) -> ListPage[RunView]:
        """A page of those that a search finds, with all details."""
        found = self.found(search)
        views = found.views(first_of(number, size), size)
        return ListPage(views, number, size, len(found), search.fields)

    @property
    def by_stream(self) -> dict[str, int]:
        """Their number by stream."""
        counted: Counter[str] = Counter()
        for stream, _, count, _ in self.counts:
            counted[stream] += count
        return counted

    @property
    def counts(self) -> list[tuple[str, str, int, datetime]]:
        """Stream and state, sorted, each with their number and the time of the newest step."""
        of_each = [("run", "count"), ("at", "max")]
        counted = self._runs.group_by(["stream", "state"]).aggregate(of_each)
        names = ("stream", "state", "run_count", "at_max")
        return sorted(tuple(row[name] for name in names) for row in counted.to_pylist())

    def in_state(self, *states: str) -> RunHeads:
        """Those in one of some states."""
        return self._filtered(pc.is_in(self._runs["state"], value_set=pa.array(states)))

    def since(self, moment: datetime) -> RunHeads:
        """Those with a step at or after a moment."""
        bound = pa.scalar(moment, pa.timestamp("us", "UTC"))
        return self._filtered(pc.greater_equal(self._runs["at"], bound))

    def without(self, names: Collection[str]) -> RunHeads:
        """Those that have other names."""
        named = pc.is_in(self._runs["run"], value_set=pa.array(names, pa.string()))
        return self._filtered(pc.invert(named))

    def first(self, count: int) -> RunHeads:
        """The first of them."""
        return RunHeads(self.lake, self._runs.slice(0, count))

    @property
    def moments(self) -> dict[str, datetime]:
        """Their names, with the times of their newest steps."""
        return dict(zip(self.names, self._runs["at"].to_pylist(), strict=True))

    def views(self, first: int, count: int) -> list[RunView]:
        """A part of them, with all details."""
        names = self._runs["run"].slice(first, count).to_pylist()
        views = {v.run: v for v in list_runs(self.lake, run=tuple(names))} if names else {}
        return [views[name] for name in names if name in views]

    def _filtered(self, condition: pa.ChunkedArray) -> RunHeads:
        return RunHeads(self.lake, self._runs.filter(condition))


def read_heads(lake: Lake) -> RunHeads:
    """All runs of a lake that have recorded a step, the newest first."""
    path = lake.ledger("runs")
    runs = cached("run heads", path, lambda: _heads(path)) if is_table(path) else _no_runs()
    return RunHeads(lake, _with_tables(lake, _with_claims(lake, runs)))


def _with_claims(lake: Lake, runs: pa.Table) -> pa.Table:
    """The runs with their states: one that has begun and holds no claim is stopped."""
    begun = pc.equal(runs["state"], _BEGUN)
    if not pc.any(begun).as_py():
        return runs
    held = pa.array({claim.run for claim in claims.active(lake)}, pa.string())
    stopped = pc.and_not(begun, pc.is_in(runs["run"], value_set=held))
    return _replaced(runs, "state", pc.if_else(stopped, _STOPPED, runs["state"]))


def _with_tables(lake: Lake, runs: pa.Table) -> pa.Table:
    """The runs with the names by which pages show their tables, wherever these are now."""
    places, targets = read_places(lake), runs["target"].combine_chunks().dictionary_encode()
    paths = [places.path_of(path) if places else path for path in targets.dictionary.to_pylist()]
    names = pa.array([short_target(path, lake.root) for path in paths], pa.string())
    return _replaced(runs, "target", names.take(targets.indices), "table")


def _replaced(runs: pa.Table, name: str, values: object, called: str = "") -> pa.Table:
    return runs.set_column(runs.column_names.index(name), called or name, values)


def _heads(path: str) -> pa.Table:
    steps = read_incrementally("run steps", path, _add_steps)["steps"].sort_by("at")
    intents = steps.filter(pc.equal(steps["step"], str(Step.INTENT)))
    done = steps.filter(pc.equal(steps["step"], str(Step.DONE)))
    runs = _last(steps, ["run"], "stream", "target", "at", "step")
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
    back = steps.filter(pc.equal(steps["step"], str(Step.ROLLED_BACK)))["run"]
    is_back = pc.is_in(runs["run"], value_set=back.combine_chunks())
    # As `History.state`, of a run that holds its claim.
    words = pc.replace_substring(runs["step"], "-", " ")
    open_state = pc.if_else(pc.equal(runs["step"], str(Step.INTENT)), _BEGUN, words)
    state = pc.if_else(is_done, pc.if_else(is_back, "rolled back", "published"), open_state)
    return (
        runs.select(["run", "stream", "target", "at"])
        .append_column("replay", replay)
        .append_column("state", state)
        .sort_by([("at", "descending")])
    )


def _no_runs() -> pa.Table:
    names = ("run", "stream", "target", "at", "replay")
    return _SCHEMA.empty_table().select(names).append_column("state", pa.array([], pa.string()))


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
