"""The ledger `verified`: how far each worker's recording is verified, and its held times there.

A row belongs to one tape, not just to a name: a stream that was deleted and recreated has another
tape. A row without a worker states that all events up to its commit are of known workers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from pyarrow import dataset

from capstan.core.protocol.rules import holdings_json
from capstan.storage.arrow_scan import rows_of
from capstan.storage.lake import Lake, is_table
from capstan.storage.ledger.tables import append_rows
from capstan.storage.tape.tape import Cut, Tape
from capstan.verify.event_fold import FoldResult, ResumePoint


@dataclass(frozen=True, slots=True)
class VerifiedUpTo:
    """The extent of earlier verifications.

    Attributes:
        starts: Where verification of each worker can resume.
        known: All events up to this commit are of workers that were open then; -1 if unknown.
    """

    starts: Mapping[int, ResumePoint] = field(default_factory=dict)
    known: int = -1


def load_verified(lake: Lake, tape: Tape, cut: Cut) -> VerifiedUpTo:
    """The recorded verifications of a tape up to a cut, without a JVM."""
    path = lake.ledger("verified")
    if not is_table(path):
        return VerifiedUpTo()
    ledger = rows_of(path)
    wanted = (
        (dataset.field("stream") == tape.name)
        & (dataset.field("tape") == tape.identity)
        & (dataset.field("commit") <= cut.commit)
    )
    columns = ["worker", "commit", "events", "records", "holdings"]
    table = ledger.to_table(columns=columns, filter=wanted).sort_by("commit")
    # The last row of each worker, without Python objects for all the others.
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


def record_verified(
    lake: Lake, tape: Tape, cut: Cut, valid: Mapping[int, FoldResult], *, known: bool
) -> None:
    """Append valid recordings at a cut to the ledger, in one commit.

    `known` states that all events up to the cut are of known workers.
    """
    common = {"stream": tape.name, "tape": tape.identity, "commit": cut.commit, "valid": True}
    rows: list[dict[str, object]] = [
        {
            **common,
            "worker": worker,
            "events": outcome.events,
            "records": outcome.records,
            "holdings": json.dumps(holdings_json(outcome.holdings, tape.time_type)),
        }
        for worker, outcome in sorted(valid.items())
    ]
    rows += [common] if known else []
    if rows:
        append_rows(lake, "verified", rows)
