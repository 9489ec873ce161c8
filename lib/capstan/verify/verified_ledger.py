"""The ledger `verified`: how far each worker's recording is verified, and its held times there.

A row belongs to one tape, not just to a name: a stream that was deleted and recreated has another
tape. A row without a worker states that all events up to its commit are of known workers.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from capstan.core.protocol.rules import holdings_json
from capstan.storage.delta import delta
from capstan.storage.delta.arrow_scan import read_columns
from capstan.storage.delta.data_files import prune
from capstan.storage.lake import Lake, is_table
from capstan.storage.ledger.tables import append_rows
from capstan.storage.tape.index import opened_commits
from capstan.storage.tape.tape import Cut, Tape
from capstan.verify.event_fold import FoldResult, ResumePoint

LOOK_BACK = 64
"""The most files of the ledger that a verification reads; most need one."""
_MAX_COMMIT = 2**63 - 1


@dataclass(frozen=True, slots=True)
class VerifiedUpTo:
    """The extent of earlier verifications."""

    starts: Mapping[int, ResumePoint] = field(default_factory=dict)
    known: int = -1  # all events up to this commit are of workers open then; -1 if unknown


def load_verified(
    lake: Lake, tape: Tape, cut: Cut, workers: Collection[int] | None = None
) -> VerifiedUpTo:
    """The recorded verifications of a tape up to a cut, without a JVM."""
    # What is not among the newest `LOOK_BACK` files is left out, and is then verified again.
    opened = {
        n: at for n, at in opened_commits(tape, cut).items() if workers is None or n in workers
    }
    columns = ["events", "records", "holdings"]
    rows = newest_rows(
        lake, tape, cut.commit, opened, columns, unowned=workers is None, look_back=LOOK_BACK
    )
    known = rows.pop(None, {"commit": -1})
    starts: dict[int, ResumePoint] = {}
    for worker, row in rows.items():
        assert worker is not None
        holdings = tuple(
            (tape.time_type.parse(time), count) for time, count in json.loads(str(row["holdings"]))
        )
        commit, events, records = (row[n] for n in ("commit", "events", "records"))
        starts[worker] = ResumePoint(commit, events, records, holdings)
    return VerifiedUpTo(starts, known["commit"])


def newest_rows(
    lake: Lake,
    tape: Tape,
    commit: int,
    opened: Mapping[int, int],
    columns: Sequence[str],
    *,
    unowned: bool = False,
    look_back: int | None = None,
) -> dict[int | None, dict[str, Any]]:
    """The newest row of each worker of a tape; if `unowned`, also the one without a worker.

    Files are read from the newest on, at most `look_back`, until there is a row of each worker: for
    a worker of before most verifications as many as there were since its own.
    """
    path, identity = lake.ledger("verified"), tape.identity
    if not is_table(path):
        return {}
    table = delta.open_table(path)
    bounds = table.files()
    for name, value in (("stream", tape.name), ("tape", identity)):
        bounds = prune(bounds, name, value, value)
    bounds = prune(bounds, "commit", None, commit)
    wanted: dict[int | None, int] = dict(opened.items())
    if unowned:
        wanted[None] = 0
    newest: dict[int | None, dict[str, Any]] = {}
    read = ["stream", "tape", "worker", "commit", *columns]
    for file, most in _newest_first(bounds)[:look_back]:
        if all(
            (row := newest.get(worker)) is not None and row["commit"] >= most
            for worker, at in wanted.items()
            if at <= most
        ):
            break
        rows = read_columns(path, read, table, [delta.resolve_path(path, file)])
        mine = pc.and_(pc.equal(rows["stream"], tape.name), pc.equal(rows["tape"], identity))
        upto = pc.less_equal(rows["commit"], commit)
        for row in rows.filter(pc.and_(mine, upto)).sort_by("commit").to_pylist():
            known = newest.get(row["worker"])
            if known is None or row["commit"] > known["commit"]:
                newest[row["worker"]] = row
    return newest


def _newest_first(files: pa.Table) -> list[tuple[str, int]]:
    """The files, each with the greatest commit that it may have; the latest written first."""
    bound = "max.commit"
    commits = files[bound].to_pylist() if bound in files.column_names else [None] * len(files)
    known = (_MAX_COMMIT if commit is None else int(commit) for commit in commits)
    columns = (files[name].to_pylist() for name in ("modification_time", "path"))
    ordered = sorted(zip(known, *columns, strict=True), reverse=True)
    return [(str(path), most) for most, _, path in ordered]


def record_verified(
    lake: Lake, tape: Tape, cut: Cut, valid: Mapping[int, FoldResult], *, known: bool
) -> None:
    """Append valid recordings in one commit; `known` if all events up to it have known workers."""
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
        append_rows(lake, "verified", rows, stream=tape.name)
