"""The runs whose changes count in a table that merges by sequence; no JVM anywhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction

from capstan.core.config import Mode, ProjectConfig
from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.errors import RangeLockedError
from capstan.replay.planning.planner import make_plan
from capstan.replay.planning.request import Request
from capstan.replay.target.ownership import Ownership
from capstan.replay.target.published_changes import published_changes
from capstan.storage.lake import Lake
from capstan.storage.ledger import coverage, runs
from capstan.storage.ledger.run_identity import RunId
from tests.support.jvmless_lake import Books, intent_json, lay_tape

NOTHING_DECLARED = ProjectConfig(Path("x.yaml"), {}, {}, {}, {})
ALWAYS = Region(Box((None,), (None,)))


def test_a_publish_recorded_during_the_look_is_refused_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run was cut off after its commit, and another process writes its rows of the ledgers."""
    lake = Lake.at(tmp_path / "lake")
    lay_tape(lake, "s", "ab", [(0,)], None)
    request = Request("s", "t", mode=Mode.MERGE, keys=("id",), sequence_by=("n",))
    plan = make_plan(lake, NOTHING_DECLARED, request)
    run = RunId.named("t-00000001-1", "00000001", 1, plan.target)
    note = {"capstan": {"run": run.name, "attempt": 1, "publish": True}}
    txn = run.change(1)
    commit = CommitProperties(
        custom_metadata={"userMetadata": json.dumps(note)},
        app_transactions=[Transaction(txn.app, txn.version)],
    )
    deltalake.write_deltalake(plan.target, pa.table({"id": [1]}), commit_properties=commit)
    books = Books(lake, "s", plan.target)
    books.stepped(run.name, "intent", intent_json(request, []), identity=run.identity)
    left = [True]

    def recording_after(read: Callable[..., Any]) -> Callable[..., Any]:
        def reading(*args: object, **equal: object) -> object:
            result = read(*args, **equal)
            if left and left.pop():
                books._cover(run.name, [0, 1], ALWAYS, "published")
                done = {"attempt": 1, "target_version": 0}
                books.stepped(run.name, "done", done, identity=run.identity)
            return result

        return reading

    monkeypatch.setattr(coverage, "recorded_at", recording_after(coverage.recorded_at))
    monkeypatch.setattr(runs, "read_histories", recording_after(runs.read_histories))
    with pytest.raises(RangeLockedError, match=r"^CAP-CONFLICT: run t-00000001-1 has published "):
        published_changes(Ownership(plan))
    [changes] = published_changes(Ownership(plan))
    assert (changes.run, changes.scope.workers) == (run.name, (0, 1))
