"""Follow a stream with a pipeline: sessions of customers, with state from run to run."""

from __future__ import annotations

import datetime as dt
import json
import sys
from pathlib import Path

import pyarrow as pa

import capstan
from capstan.pipeline import TIME, DagBuilder, Sink, pipeline
from capstan.pipeline.operators import SessionWindow, count_rows

DECLARED = """
streams:
  clicks:
    source:
      format: json
      path: "{here}/clicks"
      schema: "customer STRING, at TIMESTAMP"
    workers: {by: key, columns: [customer], count: 2}
    time: {domain: event, column: at, every: 1 minute}
"""
_CLICKS = pa.schema([(TIME, pa.int64()), ("customer", pa.string())])


@pipeline(name="sessions", sinks=[Sink("sessions")], unbounded=True)
def sessions() -> DagBuilder:
    """Sessions that end after half an hour without a click."""
    gap = dt.timedelta(minutes=30)
    return (
        DagBuilder()
        .source("clicks", _CLICKS)
        .operator("by_customer", SessionWindow(gap, (count_rows("clicks"),), by=("customer",)))
        .connect("clicks", "by_customer")
        .sink_for("by_customer", "sessions")
    )


def main(folder: Path) -> None:
    """Run the example in a new folder."""
    config, source = folder / "streams.yaml", folder / "clicks"
    source.mkdir(parents=True)
    config.write_text(DECLARED, encoding="utf-8")
    with capstan.Context(folder / "lake", config=config) as context:
        # The session of eve begins in the first file and ends in the second.
        for number, clicks in enumerate((_MORNING, _NOON)):
            lines = [json.dumps({"customer": who, "at": at}) for who, at in clicks]
            (source / f"{number}.json").write_text("\n".join(lines) + "\n", encoding="utf-8")
            context.capture("clicks")
            context.replay("clicks", into="sessions", pipeline="sessions", follow="sessions")
            rows = context.table("sessions").orderBy("customer", "_time").collect()
            print(f"after file {number}:", [(row.customer, row.clicks) for row in rows])


_MORNING = [
    ("ada", "2026-01-05T08:00:00Z"),
    ("ada", "2026-01-05T08:10:00Z"),
    ("eve", "2026-01-05T08:50:00Z"),
    ("ada", "2026-01-05T08:55:00Z"),
]
_NOON = [
    ("eve", "2026-01-05T09:05:00Z"),
    ("eve", "2026-01-05T09:20:00Z"),
    ("ada", "2026-01-05T12:00:00Z"),
]

if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
