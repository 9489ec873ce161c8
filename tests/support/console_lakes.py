"""Lakes for the pages in a browser: with nothing, with much of each kind, and with failures."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa

from capstan.backfill.pauses import set_paused
from capstan.core.config import ProjectConfig
from capstan.core.times import Box, Kind, TimeType
from capstan.core.times.region import Region
from capstan.storage.lake import Lake
from capstan.storage.ledger.made_by import MadeBy, making
from capstan.storage.ledger.region_json import region_text
from tests.support import recorded_tapes
from tests.support.jvmless_lake import Books, go_on, lay_tape

DECLARED = """
streams:
  flights:
    description: Departures from the three airports of New York in 2013
    source:
      {format: parquet, path: "{lake}/flights", schema: "sched_dep TIMESTAMP, origin STRING"}
    workers: {by: column, column: origin, labels: [EWR, JFK, LGA]}
    time: {domain: event, column: sched_dep, every: 1 hour, lateness: 3 hours}
    late: dead-letter
    schedule: "@daily"
  orders:
    description: Orders of the shop, by the number of their batch
    source: {format: parquet, path: "{lake}/orders", schema: "id BIGINT, customer STRING"}
    workers: {by: key, columns: [customer], count: 2}
    time: {domain: epoch}
  readings_of_every_sensor_in_the_cellar:
    description: Declared, and never captured
    source: {format: parquet, path: "{lake}/readings", schema: "at TIMESTAMP, sensor STRING"}
    workers: {by: column, column: sensor}
    time: {domain: event, column: at, every: 1 hour, lateness: 1 hour}
transforms:
  flights_by_day:
    description: Departures by airport and day
    sql: >-
      SELECT _worker, date_trunc('DAY', _time.event) AS day, count(*) AS departures
      FROM records GROUP BY _worker, date_trunc('DAY', _time.event)
    time: day
    grain: 1 day
    worker: _worker
targets:
  flights_by_day: {time: day}
replays:
  flights_by_day:
    description: The year by airport and day
    stream: flights
    transform: flights_by_day
    target: flights_by_day
    since: 2013-01-01
    until: 2014-01-01
    schedule: "@daily"
  march_departures:
    description: Newark and LaGuardia in March 2013, as they are on tape
    stream: flights
    workers: [EWR, LGA]
    since: 2013-03-01
    until: 2013-04-01
    target: march_departures
  orders_by_batch:
    description: All orders, in the order of their batches
    stream: orders
    target: orders_by_batch
"""

PUBLISHED, FAILED = "march_departures-91edb34e-1", "orders_by_batch-0b0b0b0b-1"
WAITS, DEAD = "flights_by_day-5f0c2d1e-1", "flights_by_day-dead0000-1"
HOLDS, ROLLED_BACK = "flights_by_day-0c1a1b00-1", "flights_by_day-77c1d2aa-1"
LABELS = ("EWR", "JFK", "LGA")

_DAY = 86_400_000_000
MADE_BY: dict[str, Any] = {
    "dag": "capstan_replay", "dag_run": "manual__2026-11-27T09:59:21+00:00", "task": "replay",
    "try_number": 1, "user": "ada",
}  # fmt: skip


def _at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1_000_000


def _span(since: str, until: str) -> Region:
    return Region(Box((_at(since),), (_at(until),)))


def _bounds(since: str, until: str) -> dict[str, object]:
    return {"since": f"{since}T00:00:00.000000Z", "until": f"{until}T00:00:00.000000Z"}


def empty(_lake: Lake, _declared: ProjectConfig) -> None:
    """Nothing is captured."""


def full(lake: Lake, declared: ProjectConfig) -> None:
    """A year of flights: days in each state, and runs in each."""
    _flights(lake)
    lay_tape(lake, "orders", ["0", "1"], [(n,) for n in range(60)], (60,), time_type=_EPOCH)
    _rows(lake, "orders", _EPOCH, {})
    _runs(lake, declared)
    _orders(lake)
    with making(MadeBy(user="ada")):
        set_paused(lake, "orders_by_batch", paused=True, because="the shop corrects its orders")


def failing(lake: Lake, declared: ProjectConfig) -> None:
    """The same with a recording that breaks the rules, and a run that failed its audit."""
    full(lake, declared)
    tape = str(deltalake.DeltaTable(lake.stream("flights").events).metadata().id)
    broken = {
        "tape": tape, "seq": 17, "rule": "message", "held": [],
        "about": "a message at 2013-07-04T05:00:00Z, which the worker does not hold",
    }  # fmt: skip
    kept = Books(lake, "orders", lake.table("orders_by_batch"), _claims=90, _now=_now(-3600))
    violation = {
        "run": "", "attempt": 0, "stream": "flights", "cut": 11, "target": "", "worker": 1,
        "audit": "verification", "kind": "violation", "code": "CAP-VIOLATION", "total": 1,
        "actual": json.dumps(broken),
    }  # fmt: skip
    kept.append("findings", violation)
    error = {
        "error": "CAP-AUDIT", "message": "2 of 120 cells of orders differ from the tape",
        "hint": "see the findings; nothing was published", "kind": "copy", "cells": 120,
        "differing": 2, "totals": {"missing": 1, "changed": 1}, "passed": False,
    }  # fmt: skip
    everything = Region(Box((None,), (None,)))
    kept.claimed(FAILED, None, everything)
    asked = {"stream": "orders", "into": "orders_by_batch"}
    intent = {"region": region_text(everything), "request": asked, "certificate": _ORDERS}
    kept.stepped(FAILED, "intent", intent)
    kept.stepped(FAILED, "failed", error)
    kept.released(FAILED)
    found = {
        "run": FAILED, "attempt": 1, "stream": "orders", "cut": 0, "target": kept.target,
        "audit": "staged", "code": "CAP-ROWS", "total": 1, "worker": 0, "time": "17",
    }  # fmt: skip
    wanted, other = (
        {"id": number, "customer": name * 8} for number, name in ((4711, "ada "), (12, "bea "))
    )
    texts = {"expected": json.dumps(wanted), "actual": json.dumps(other)}
    missing = {**found, "kind": "missing", "expected": texts["expected"]}
    kept.append("findings", missing, {**found, "kind": "changed", **texts})


_EPOCH = TimeType.of(epoch=Kind.BIGINT)
_EVENT = TimeType.of(event=Kind.TIMESTAMP)


def _flights(lake: Lake) -> None:
    """A commit for each month, up to 2013-12-20; three records are late."""
    months = [f"2013-{month:02}-01" for month in range(1, 13)] + ["2013-12-20"]
    parts = [
        ([(at,) for at in range(_at(since), _at(until), _DAY // 4)], (_at(until),))
        for since, until in pairwise(months)
    ]
    lay_tape(lake, "flights", LABELS, *parts[0], every=3_600_000_000)
    for times, frontier in parts[1:]:
        go_on(lake, "flights", times, frontier)
    _apart(lake.stream("flights").events)
    recorded_tapes.Recorded("flights", LABELS, len(parts)).verified(
        lake, len(parts) - 1, _now(-86_000)
    )
    _rows(lake, "flights", _EVENT, {"late": 3, "ahead of the clock": 1})


def _apart(table: str) -> None:
    """Have the commits of a table a day apart, up to yesterday."""
    logged = sorted(Path(table, "_delta_log").glob("*.json"))
    for ago, entry in enumerate(reversed(logged), 1):
        at = int(_now(-86_400 * ago).timestamp() * 1_000)
        text = entry.read_text(encoding="utf-8")
        entry.write_text(re.sub(r'"modificationTime":\d+', f'"modificationTime":{at}', text))


def _rows(lake: Lake, stream: str, time_type: TimeType, late: Mapping[str, int]) -> None:
    """The tables of a tape beside its index, with late records by reason."""
    kinds = {"timestamp": pa.timestamp("us", "UTC"), "bigint": pa.int64()}
    time = pa.struct([(c.name, kinds[c.kind.value.lower()]) for c in time_type.coordinates])
    data = pa.struct([("carrier", pa.string()), ("flight", pa.int64()), ("dest", pa.string())])
    common = [("worker", pa.int32()), ("batch", pa.int64()), ("time", time), ("pos", pa.int64())]
    more = [("reason", pa.string()), ("frontier", pa.list_(time))]
    paths = lake.stream(stream)
    sent = [
        {"worker": 0, "batch": 0, "pos": i, "data": {"carrier": "UA", "flight": i, "dest": "IAH"}}
        for i in range(500)
    ]
    schema = pa.schema([*common, ("data", data)])
    recorded_tapes.write(paths.records, pa.Table.from_pylist(sent, schema=schema))
    reasons = [reason for reason, count in late.items() for _ in range(count)]
    rows = [{"worker": 0, "batch": 0, "pos": i, "reason": each} for i, each in enumerate(reasons)]
    schema = pa.schema([*common, *more, ("data", data)])
    recorded_tapes.write(paths.late, pa.Table.from_pylist(rows, schema=schema))


def _now(seconds: int = 0) -> datetime:
    return datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=seconds)


def certificate(stream: str, into: str, **more: object) -> dict[str, object]:
    """A certificate of a copy of March, as far as no field says otherwise."""
    return {
        "format": 1, "stream": stream, "cut": 11, "workers": LABELS, "peers": 2,
        "records": 19_161, "times": 552, "fingerprint": "4b91f810bece752a61ddd52c5b873c2f",
        "since": "2013-03-01T00:00:00.000000Z", "until": "2013-04-01T00:00:00.000000Z",
        "frontier": ["2013-12-20T00:00:00.000000Z"], "complete": True, "late": {},
        "not_covered": {"workers": [], "incomplete_from": None, "asked_until": None},
        "mode": "replace", "target": into, "target_path": into, **more,
    }  # fmt: skip


_ORDERS = certificate(
    "orders", "orders_by_batch", cut=0, workers=["0", "1"], records=80, times=40, since=None,
    until="40", frontier=["60"],
)  # fmt: skip
_AUDITED = {"passed": True, "kind": "copy", "cells": 1_079}
_CHANGE = {
    "added": 1, "removed": 0, "changed": 2, "cells": 93, "differing": 3, "foreign": 0,
    "sample": [
        {"kind": "changed", "worker": "EWR", "time": "2013-11-11",
         "before": {"departures": 310}, "after": {"departures": 312}},
        {"kind": "changed", "worker": "JFK", "time": "2013-11-11",
         "before": {"departures": 298}, "after": {"departures": 299}},
        {"kind": "added", "worker": "LGA", "time": "2013-11-12",
         "before": None, "after": {"departures": 301}},
    ],
}  # fmt: skip


def _runs(lake: Lake, declared: ProjectConfig) -> None:
    now = declared.transforms["flights_by_day"].code_hash
    march = Books(lake, "flights", lake.table("march_departures"), _now=_now(-9_000))
    request: dict[str, Any] = {"stream": "flights", "mode": "replace"}
    asked = {
        **request, "replay": "march_departures", "into": "march_departures",
        "workers": ["EWR", "LGA"], "since": "2013-03-01", "until": "2013-04-01",
    }  # fmt: skip
    done = certificate(
        "flights", "march_departures", published=True, run=PUBLISHED, audit=_AUDITED,
        seconds=24.527, target_version=1, workers=["EWR", "LGA"], late={"late": 1},
        not_covered={"workers": ["JFK"], "incomplete_from": None, "asked_until": None},
    )  # fmt: skip
    times = _span("2013-03-01", "2013-04-01")
    march.published(PUBLISHED, [0, 2], times, request=asked, certificate=done, made_by=MADE_BY)
    kept = Books(
        lake, "flights", lake.table("flights_by_day"), "flights_by_day", now, _claims=10,
        _now=_now(-8_000),
    )  # fmt: skip
    daily = {
        **request, "replay": "flights_by_day", "into": "flights_by_day",
        "transform": "flights_by_day",
    }  # fmt: skip

    def published(run: str, since: str, until: str) -> Region:
        about = certificate(
            "flights", "flights_by_day", records=81_223, audit=_AUDITED,
            transform="flights_by_day", code=kept.code, **_bounds(since, until),
        )  # fmt: skip
        asked = {**daily, "since": since, "until": until}
        kept.published(run, [0, 1, 2], _span(since, until), request=asked, certificate=about)
        return _span(since, until)

    for number, (since, until) in enumerate(
        (("2013-01-01", "2013-04-01"), ("2013-04-01", "2013-07-01"), ("2013-07-01", "2013-09-20"))
    ):
        published(f"flights_by_day-1a2b3c{number:02}-1", since, until)
    taken_back = published(ROLLED_BACK, "2013-09-20", "2013-09-25")
    kept.rolled_back(ROLLED_BACK, [0, 1, 2], taken_back)
    kept.code = "of older code"
    published("flights_by_day-01de0000-1", "2013-10-01", "2013-10-15")
    kept.code = now
    lost, bad = "flights_by_day-0bad0000-1", _span("2013-10-20", "2013-10-23")
    kept.claimed(lost, [0, 1, 2], bad)
    kept.stepped(lost, "intent", {"region": region_text(bad), "request": daily})
    full_disk = {"error": "CAP-SPARK", "message": "No space left on device", "hint": "free some"}
    kept.stepped(lost, "failed", full_disk)
    kept.released(lost)
    for run, since, until in (
        (DEAD, "2013-10-25", "2013-10-27"),
        (HOLDS, "2013-12-01", "2013-12-04"),
        (WAITS, "2013-11-11", "2013-11-14"),
    ):
        kept._now = max(kept._now, _now(-4_000))
        kept.claimed(run, [0, 1, 2], _span(since, until))
        asked = {**daily, "since": since, "until": until}
        about = certificate(
            "flights", "flights_by_day", records=2_790, transform="flights_by_day", code=now,
            **_bounds(since, until),
        )  # fmt: skip
        by = {} if run == HOLDS else {"made_by": MADE_BY}
        region = {"region": region_text(_span(since, until))}
        kept.stepped(run, "intent", {**region, "request": asked, "certificate": about, **by})
    kept.stepped(WAITS, "audited", {"audit": _AUDITED, "diff": _CHANGE, "made_by": MADE_BY})
    kept.released(DEAD)


def _orders(lake: Lake) -> None:
    kept = Books(lake, "orders", lake.table("orders_by_batch"), _claims=50, _now=_now(-6_000))
    run, region = "orders_by_batch-00c0ffee-1", Region(Box((0,), (40,)))
    kept.published(run, [0, 1], region, certificate=_ORDERS)


STATES: Mapping[str, Callable[[Lake, ProjectConfig], None]] = {
    "empty": empty,
    "full": full,
    "failing": failing,
}
"""What lays in a lake in each state."""

PAGES: Mapping[str, Sequence[str]] = {
    "empty": (
        "/", "/streams/flights", "/replays/flights_by_day", "/runs", "/tables",
        "/tables?target=nothing", "/fill?stream=flights",
    ),
    "full": (
        "/", "/streams/flights", "/streams/orders",
        "/streams/readings_of_every_sensor_in_the_cellar", "/replays/flights_by_day",
        "/replays/flights_by_day?year=2013&at=2013-01-02#cell", "/replays/march_departures",
        "/replays/orders_by_batch", "/runs", "/runs?state=failed&sort=run", f"/runs/{PUBLISHED}",
        f"/runs/{WAITS}", f"/runs/{HOLDS}", f"/runs/{DEAD}", f"/runs/{ROLLED_BACK}",
        f"/runs/{PUBLISHED}/report.html", "/tables", "/tables?target={lake}/tables/flights_by_day",
        "/fill?replay=flights_by_day&since=2013-11-01&until=2013-11-08",
    ),
    "failing": (
        "/", "/streams/flights", f"/runs/{FAILED}", "/fill?stream=flights&into=/etc/passwd",
        "/nowhere", "/streams/secret", "/runs?page=0",
    ),
}  # fmt: skip
"""The pages that are looked at in each state; `{lake}` is its path."""


def pages(state: str, lake: Lake) -> Iterator[tuple[str, str]]:
    """The name and the path of each page in a state."""
    for path in PAGES[state]:
        plain, _, query = path.partition("?")
        words = [state, *plain.strip("/").split("/"), *query.split("&")]
        name = "-".join(word.split("=")[-1].rpartition("/")[2] for word in words if word)
        yield name.split("#")[0], path.replace("{lake}", lake.root)
