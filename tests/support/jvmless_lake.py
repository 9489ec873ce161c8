"""Tapes and ledgers written without a JVM, for tests of code that needs none."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NoReturn

import deltalake
import pyarrow as pa
import pyarrow.compute as pc

from capstan.core.config import ProjectConfig, Transform
from capstan.core.times import Antichain, Box, Kind, Time, TimeType
from capstan.core.times.region import Region
from capstan.replay.planning.intent import Intent, Placement
from capstan.replay.planning.request import Request
from capstan.replay.planning.target_places import locate, target_path
from capstan.storage.delta.arrow_writer import arrow_schema
from capstan.storage.lake import Lake, is_table
from capstan.storage.ledger.certificate import Certificate
from capstan.storage.ledger.region_json import region_text
from capstan.storage.ledger.tables import SCHEMAS
from capstan.storage.tape import index as summary
from capstan.storage.tape.tape import open_tape

EVENT = TimeType.of(event=Kind.TIMESTAMP)
"""Event times."""
FIRST = int(datetime(2024, 5, 1, tzinfo=UTC).timestamp()) * 1_000_000
"""The event time at which tapes begin: midnight of 2024-05-01, in microseconds."""
BY_DAY = Transform(
    name="by_day",
    sql="SELECT _worker, date_trunc('DAY', _time.event) AS day, count(*) AS n FROM records "
    "GROUP BY ALL",
    time="day",
    worker="_worker",
    grain=timedelta(days=1),
)
"""Counts the records of each worker and day."""

_ARROW = {
    Kind.BIGINT: pa.int64(),
    Kind.DATE: pa.date32(),
    Kind.TIMESTAMP: pa.timestamp("us", "UTC"),
}


def lay_tape(
    lake: Lake,
    name: str,
    labels: Sequence[str],
    times: Iterable[Sequence[int]],
    frontier: Sequence[int] | None,
    *,
    time_type: TimeType = EVENT,
    opened: Mapping[str, Sequence[int]] | None = None,
    every: int | None = None,
    stamps: Iterable[Sequence[Sequence[int]]] = (),
) -> None:
    """Write a tape in one commit: each worker has a record at each time, then its frontier.

    Args:
        lake: The lake.
        name: The stream's name.
        labels: Of its workers, in the order of their numbers.
        times: Of the records, as integers.
        frontier: The frontier of all workers afterwards; None closes them.
        time_type: The coordinates of the times.
        opened: Workers whose first event moves their capability to this time; they have only the
            records from there on.
        every: The declared length of which times are multiples, in microseconds.
        stamps: Of further records of each worker, several elements each, or none.
    """
    time = pa.struct([(c.name, _ARROW[c.kind]) for c in time_type.coordinates])
    update = pa.struct([("time", time), ("diff", pa.int64())])
    content = pa.struct([("h1", pa.int64()), ("h2", pa.int64())])
    schema = pa.schema(
        [
            ("worker", pa.int32()), ("seq", pa.int64()), ("kind", pa.string()), ("time", time),
            ("updates", pa.list_(update)), ("batch", pa.int64()), ("commit", pa.int64()),
            ("records", pa.int64()), ("fingerprint", content),
        ]
    )  # fmt: skip
    stamps, pairs = list(stamps), time_type.order.lexicographic
    if stamps or pairs:
        schema = schema.append(pa.field("stamp", pa.list_(time)))

    def struct(value: Sequence[int]) -> dict[str, int]:
        return dict(zip(time_type.names, value, strict=True))

    rows: list[dict[str, object]] = []
    for worker, label in enumerate(labels):
        own: list[dict[str, object]] = []
        held: Sequence[int] = time_type.minimum
        first = (opened or {}).get(label)
        if first is not None:
            own.append({"kind": "progress", "updates": _moved(struct, held, first)})
            held = first
        for item in times:
            if all(a <= b for a, b in zip(held, item, strict=True)):
                printed = {"time": struct(item), "records": 1, "fingerprint": {"h1": 1, "h2": 2}}
                own.append({"kind": "messages", **printed})
        for stamp in stamps:
            printed = {"records": 1, "fingerprint": {"h1": 1, "h2": 2}}
            if stamp:
                printed["time"] = struct(stamp[0])
            own.append({"kind": "messages", **printed, "stamp": [struct(item) for item in stamp]})
        own.append({"kind": "progress", "updates": _moved(struct, held, frontier)})
        about = {"worker": worker, "batch": 0, "commit": 0}
        rows += [{**about, "seq": seq, **event} for seq, event in enumerate(own)]
    paths = lake.stream(name)
    properties = {
        "capstan.format": "4" if pairs else "3" if stamps else "1",
        "capstan.stream": name,
        "capstan.time": json.dumps(time_type.to_json()),
        "capstan.settings": json.dumps(
            {} if every is None else {"fixed": {"time": {"every_us": every}}}
        ),
    }
    _write(paths.events, pa.Table.from_pylist(rows, schema=schema), properties)
    known = pa.schema(
        [("worker", pa.int32()), ("label", pa.string()), ("opened_commit", pa.int64())]
    )
    listed = [{"worker": n, "label": x, "opened_commit": 0} for n, x in enumerate(labels)]
    _write(paths.workers, pa.Table.from_pylist(listed, schema=known), {})


def go_on(
    lake: Lake,
    name: str,
    times: Iterable[Sequence[int]],
    frontier: Sequence[int] | None,
    *,
    workers: Collection[int] | None = None,
) -> None:
    """Add one commit to a tape: each worker has a record at each time, then its frontier.

    A time that a worker no longer holds gets a record too, which violates the protocol. With
    `workers`, the others have no event.
    """
    tape = open_tape(lake, name)
    cut = summary.find_cut(tape, None)
    index = deltalake.DeltaTable(tape.paths.events)

    def struct(value: Sequence[int]) -> dict[str, int]:
        return dict(zip(tape.time_type.names, value, strict=True))

    rows: list[dict[str, object]] = []
    for state in summary.worker_states(tape, cut):
        if workers is not None and state.worker not in workers:
            continue
        printed = {"records": 1, "fingerprint": {"h1": 1, "h2": 2}}
        own = [{"kind": "messages", "time": struct(time), **printed} for time in times]
        [(held, _)] = state.holdings
        own.append({"kind": "progress", "updates": _moved(struct, held, frontier)})
        about = {"worker": state.worker, "batch": cut.batch + 1, "commit": cut.commit + 1}
        rows += [{**about, "seq": seq, **event} for seq, event in enumerate(own, state.events)]
    schema = pa.schema(index.schema().to_arrow())
    _write(tape.paths.events, pa.Table.from_pylist(rows, schema=schema), {})


def lay_records(lake: Lake, name: str, labels: Sequence[str], records: pa.Table) -> None:
    """Write a tape of these records in one commit, after which all workers are closed.

    Args:
        lake: The lake.
        name: The stream's name.
        labels: Of its workers, in the order of their numbers.
        records: The rows of the tape's `records`, of any number of micro-batches. Fingerprints in
            its index are those of no rows, so that nothing can be audited by it.
    """
    # Spark may have non-nullable fields inside nullable structs.
    records = records.cast(pa.schema([(f.name, _nullable(f.type)) for f in records.schema]))
    place = ["worker", "batch", "time"]
    moment = pa.timestamp("us", "UTC")
    flat = pa.table(
        {
            "worker": records["worker"],
            "batch": records["batch"],
            "time": pc.struct_field(records["time"].combine_chunks(), "event").cast(moment),
        }
    )
    counted = flat.group_by(place).aggregate([([], "count_all")])
    counted = counted.sort_by([(name, "ascending") for name in place])
    lay_tape(lake, name, labels, [], None)
    index = deltalake.DeltaTable(lake.stream(name).events)
    schema = index.to_pyarrow_table().schema
    last = int(pc.max(records["batch"]).as_py())
    seqs: Counter[int] = Counter()
    rows: list[dict[str, object]] = []
    for worker, batch, time, count in zip(*counted.to_pydict().values(), strict=True):
        about = {"worker": worker, "seq": seqs[worker], "batch": batch, "commit": 0}
        printed = {"time": {"event": time}, "records": count, "fingerprint": {"h1": 0, "h2": 0}}
        rows.append({**about, "kind": "messages", **printed})
        seqs[worker] += 1
    ends = index.to_pyarrow_table().to_pylist()
    rows += [{**end, "seq": seqs[end["worker"]], "batch": last} for end in ends]
    table = pa.Table.from_pylist(rows, schema=schema)
    deltalake.write_deltalake(index.table_uri, table, mode="overwrite")
    _write(lake.stream(name).records, records, {})


def _nullable(kind: pa.DataType) -> pa.DataType:
    """A type as tapes have it: with fields that may be null, and times in microseconds."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_struct(kind):
        return pa.struct([(item.name, _nullable(item.type)) for item in kind])
    return pa.list_(_nullable(kind.value_type)) if pa.types.is_list(kind) else kind


def _moved(struct: object, before: Sequence[int], after: Sequence[int] | None) -> list[object]:
    assert callable(struct)
    gone: list[object] = [{"time": struct(before), "diff": -1}]
    return gone if after is None else [*gone, {"time": struct(after), "diff": 1}]


def intent_json(request: Request, reached: Iterable[Sequence[int]]) -> dict[str, object]:
    """The intent of a copy of all times into a table that does not exist yet."""
    everything = Region(Box((None,), (None,)))
    frontier = Antichain.of(Time(time) for time in reached)
    placed, draft = Placement("_worker", "_time"), Certificate.from_json({})
    intent = Intent(request, 0, everything, frontier, "", placed, request.keys, (), -1, draft)
    return intent.to_json()


@dataclass(slots=True)
class Books:
    """Writes ledgers as runs would leave them; each row is later than the previous one.

    Attributes:
        lake: The lake.
        stream: Of the runs.
        target: The path of their target.
        transform: Its name, empty for copies.
        code: Its hash.
    """

    lake: Lake
    stream: str
    target: str
    transform: str = ""
    code: str = ""
    _now: datetime = datetime(2024, 1, 1, tzinfo=UTC)
    _claims: int = 0
    _version: int = field(default=0)

    def published(
        self,
        run: str,
        workers: Sequence[int] | None,
        region: Region,
        *,
        mode: str = "replace",
        kept: Region | None = None,
        identity: str | None = None,
        cut: int = 0,
        request: Mapping[str, object] | None = None,
        certificate: Mapping[str, object] | None = None,
        made_by: Mapping[str, object] | None = None,
    ) -> None:
        """A run that has published.

        Args:
            run: Its name.
            workers: The workers of its rows; None if the target does not keep the worker.
            region: The replayed region.
            mode: How it changed the target.
            kept: The covered region, if it differs from the replayed one: the target keeps no time.
            identity: Its identity, if a test needs one.
            cut: The replayed commit of the tape.
            request: What it was asked for beside the mode.
            certificate: What its certificate says beside the version of its target.
            made_by: The task that had it made.
        """
        self.claimed(run, workers, kept or region)
        more, by = dict(certificate or {}), {"made_by": dict(made_by)} if made_by else {}
        intent = {"region": region_text(region), "request": {**(request or {}), "mode": mode}, **by}
        intent |= {"certificate": more} if more else {}
        self.stepped(run, "intent", intent, identity=identity)
        self._version += 1
        # A publish counts only while its table exists.
        own = self.target.startswith(f"{self.lake.root}/")
        if (own or "://" not in self.target) and not is_table(self.target):
            _write(self.target, pa.table({"n": [1]}), {})
        self._cover(run, workers, kept or region, "published", cut)
        done = {**more, "attempt": 1, "target_version": self._version, **by}
        self.stepped(run, "done", done, identity=identity)

    def rolled_back(self, run: str, workers: Sequence[int] | None, region: Region) -> None:
        """The same run, rolled back."""
        self._version += 1
        self._cover(run, workers, region, "rolled-back")
        self.stepped(run, "rolled-back", {"target_version": self._version})

    def failed(self, run: str, workers: Sequence[int] | None, region: Region) -> None:
        """A run that failed before it wrote anything."""
        self.claimed(run, workers, region)
        self.stepped(run, "failed", {"error": "CAP-AUDIT"})

    def claimed(
        self,
        run: str,
        workers: Sequence[int] | None,
        region: Region,
        *,
        attempt: int = 1,
        lives: timedelta = timedelta(hours=12),
    ) -> None:
        """A run that has only a claim; the same attempt again renews it."""
        self.append(
            "claims",
            {
                "claim": self._claims, "kind": "claim", "run": run, "attempt": attempt,
                "stream": self.stream, "target": self.target,
                "workers": None if workers is None else list(workers),
                "region": region_text(region), "expires": self._now + lives,
            },
        )  # fmt: skip
        self._claims += 1

    def released(self, run: str, attempt: int = 1) -> None:
        """An attempt of a run whose claim was released or unlocked."""
        about = {"claim": -1, "kind": "release", "run": run, "attempt": attempt}
        self.append("claims", about)

    def stepped(
        self,
        run: str,
        step: str,
        detail: Mapping[str, object],
        *,
        attempt: int = 1,
        identity: str | None = None,
        generation: int = 1,
    ) -> None:
        """A step of an attempt of a run, by default of its first."""
        self.append(
            "runs",
            {
                "run": run, "identity": identity or run, "generation": generation,
                "attempt": attempt,
                "step": step, "stream": self.stream, "target": self.target,
                "detail": json.dumps(detail),
            },
        )  # fmt: skip

    def became(
        self, pipeline: str, snapshot: str, event: str, detail: Mapping[str, object] | None = None
    ) -> None:
        """Record an event of a snapshot."""
        self.append(
            "snapshots",
            {
                "pipeline": pipeline, "snapshot": snapshot, "event": event,
                "peers": detail and detail["peers"], "detail": detail and json.dumps(detail),
            },
        )  # fmt: skip

    def _cover(
        self,
        run: str,
        workers: Sequence[int] | None,
        region: Region,
        state: str,
        cut: int = 0,
        version: int | None = None,
    ) -> None:
        about = {
            "target": self.target, "stream": self.stream, "region": region_text(region),
            "run": run, "generation": 1, "transform": self.transform, "code": self.code,
            "cut": cut, "state": state,
            "target_version": self._version if version is None else version,
        }  # fmt: skip
        owners: Sequence[int | None] = [None] if workers is None else workers
        self.append("coverage", *({**about, "worker": worker} for worker in owners))

    def append(self, ledger: str, *rows: Mapping[str, object]) -> None:
        """Write rows of a ledger in one commit; each has the present time unless it has its own."""
        self._now += timedelta(seconds=1)
        schema = arrow_schema(SCHEMAS[ledger])
        stamped = [{"at": self._now, **row} for row in rows]
        _write(self.lake.ledger(ledger), pa.Table.from_pylist(stamped, schema=schema), {})


def _write(path: str, table: pa.Table, properties: Mapping[str, str | None]) -> None:
    if not deltalake.DeltaTable.is_deltatable(path):
        deltalake.DeltaTable.create(
            path, table.schema, configuration=properties, raise_if_key_not_exists=False
        )
    deltalake.write_deltalake(path, table, mode="append")


class Started(Exception):
    """Spark would start."""


def starts_spark(lake: Lake, config: ProjectConfig, into: str, pipeline: str | None = None) -> bool:
    """Whether Spark's catalogs must be asked for a table of a replay."""

    def later() -> NoReturn:
        raise Started

    try:
        assert locate(later, lake, config, into, pipeline) == target_path(lake, config, into)
    except Started:
        return True
    return False
