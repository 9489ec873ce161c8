"""The ledger `verified`: up to where each worker's recording was found sound, and what it held.

A row belongs to one tape, not only to a name: a stream that was deleted and made again has
another tape. A row without a worker says that up to its commit all events are of workers that
the stream has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pyarrow as pa
from pyarrow import dataset
from pyspark.sql.types import (
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from capstan.core.protocol.rules import holdings_json
from capstan.storage import arrow_writer, delta
from capstan.storage.arrow_scan import rows_of
from capstan.storage.lake import Lake, is_table
from capstan.storage.ledger.tables import PROPERTIES
from capstan.storage.tape.tape import Cut, Tape
from capstan.verify.event_fold import FoldResult, ResumePoint

VERIFIED = StructType(
    [
        StructField("stream", StringType()),
        StructField("tape", StringType()),
        StructField("worker", IntegerType()),
        StructField("commit", LongType()),
        StructField("events", LongType()),
        StructField("records", LongType()),
        StructField("holdings", StringType()),
        StructField("at", TimestampType()),
        StructField("valid", BooleanType()),
    ]
)


@dataclass(frozen=True, slots=True)
class VerifiedUpTo:
    """What earlier runs found sound.

    Attributes:
        starts: By worker, where a run can go on.
        known: Up to this commit all events are of workers that were open then; -1 if not known.
    """

    starts: Mapping[int, ResumePoint] = field(default_factory=dict)
    known: int = -1


def recall(lake: Lake, tape: Tape, cut: Cut) -> VerifiedUpTo:
    """What is remembered of a tape at a cut or before it, without a JVM."""
    path = lake.ledger("verified")
    if not is_table(path):
        return VerifiedUpTo()
    found = rows_of(path)
    wanted = (
        (dataset.field("stream") == tape.name)
        & (dataset.field("tape") == tape_id(tape))
        & (dataset.field("commit") <= cut.commit)
    )
    columns = ["worker", "commit", "events", "records", "holdings"]
    table = found.to_table(columns=columns, filter=wanted).sort_by("commit")
    # The last row of each worker, without making Python objects of all the others.
    last = dict(zip(table.column("worker").to_pylist(), range(table.num_rows), strict=True))
    starts: dict[int, ResumePoint] = {}
    known = -1
    for row in table.take(pa.array(list(last.values()), pa.int64())).to_pylist():
        if row["worker"] is None:
            known = row["commit"]
            continue
        holdings = tuple(
            (tape.time_type.parse(time), count) for time, count in json.loads(row["holdings"])
        )
        starts[row["worker"]] = ResumePoint(row["commit"], row["events"], row["records"], holdings)
    return VerifiedUpTo(starts, known)


def remember(
    lake: Lake,
    tape: Tape,
    cut: Cut,
    sound: Mapping[int, FoldResult],
    *,
    known: bool,
) -> None:
    """Append to the ledger what was found sound at a cut, in one commit.

    Args:
        lake: The lake.
        tape: The tape.
        cut: The cut that was verified.
        sound: By worker, where its recording stands; valid ones only.
        known: Whether all events up to the cut are of workers that are open.
    """
    path = lake.ledger("verified")
    common = {
        "stream": tape.name,
        "tape": tape_id(tape),
        "commit": cut.commit,
        "at": datetime.now(UTC),
        "valid": True,
    }
    rows: list[dict[str, object]] = [
        {
            **common,
            "worker": worker,
            "events": outcome.events,
            "records": outcome.records,
            "holdings": json.dumps(holdings_json(outcome.holdings, tape.time_type)),
        }
        for worker, outcome in sorted(sound.items())
    ]
    rows += [common] if known else []
    if not rows:
        return
    arrow_writer.create_table(path, VERIFIED, properties=PROPERTIES)
    table = pa.Table.from_pylist(rows, schema=arrow_writer.arrow_schema(VERIFIED))
    arrow_writer.append(path, table, note={"ledger": "verified", "stream": tape.name})


def tape_id(tape: Tape) -> str:
    """What tells a tape from another one that had its name."""
    return str(delta.open_table(tape.paths.events).metadata().id)
