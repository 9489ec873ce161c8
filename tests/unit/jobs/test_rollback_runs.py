"""The app `rollback`: what cannot be taken back is refused from the ledgers, without Spark."""

from __future__ import annotations

import json
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction

from capstan.api.context import Context
from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.errors import InvalidRequestError
from capstan.jobs import handlers
from capstan.storage.lake import Lake
from capstan.storage.ledger.run_identity import RunId
from tests.support.contexts import SparkStarted, refuse_spark
from tests.support.jvmless_lake import Books

ALL = Region(Box((None,), (None,)))


@pytest.fixture
def context(tmp_path: Path) -> Context:
    """A lake with a run in each state; `over` has written over part of `under`."""
    lake = Lake.at(tmp_path)
    books = Books(lake, "s", lake.table("t"))
    for run, steps in {
        "claimed": (),
        "begun": ("intent",),
        "waits": ("intent", "audited"),
        "rejected": ("intent", "audited", "rejected"),
    }.items():
        books.claimed(run, [9], ALL)
        for step in steps:
            books.stepped(run, step, {})
    books.failed("failed", [9], ALL)
    books.published("under", [0, 1], ALL)
    books.published("over", [1, 2], ALL)
    books.published("alone", [3], ALL)
    books.published("back", [4], ALL)
    books.rolled_back("back", [4], ALL)
    return Context(tmp_path, spark=refuse_spark)


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"run": "over"}, None),
        ({"run": "alone"}, None),
        # It was taken back already, and stays so.
        ({"run": "back"}, None),
        # It may have published, and the target alone knows.
        ({"run": "begun"}, None),
        ({"run": "under"}, "CAP-LATER"),
        ({"run": "failed"}, "CAP-NOT-PUBLISHED"),
        ({"run": "waits"}, "CAP-NOT-PUBLISHED"),
        ({"run": "rejected"}, "CAP-NOT-PUBLISHED"),
        ({"run": "claimed"}, "CAP-RUN"),
        ({"run": "none"}, "CAP-RUN"),
        ({"run": 7}, "CAP-REQUEST"),
        ({"run": "over", "reason": "x"}, "CAP-REQUEST"),
        ({}, "CAP-REQUEST"),
    ],
)
def test_runs_that_can_be_rolled_back(
    context: Context, asked: dict[str, object], code: str | None
) -> None:
    if code is None:
        with pytest.raises(SparkStarted):
            handlers.rollback(asked, context)
        return
    with pytest.raises(InvalidRequestError, match=f"^{code}: "):
        handlers.rollback(asked, context)


def test_the_blocking_run_is_named(context: Context) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        handlers.rollback({"run": "under"}, context)
    assert caught.value.fields["later"] == "over"
    assert caught.value.hint == "roll back over first"


def test_a_missing_lake_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="^CAP-LAKE: "):
        handlers.rollback({"run": "a"}, Context(tmp_path / "none"))


ROWS = pa.table({"x": [1]})


def commit(lake: Lake, run: RunId, version: int, **note: object) -> None:
    """A commit of the target by a transaction of a run."""
    metadata = {"userMetadata": json.dumps({"capstan": {"run": run.name, **note}})}
    properties = CommitProperties(metadata, app_transactions=[Transaction(run.app, version)])
    deltalake.write_deltalake(lake.table("t"), ROWS, mode="append", commit_properties=properties)


@pytest.mark.parametrize("steps", [("audited",), ("audited", "approved"), ("failed",)])
def test_a_run_killed_after_its_commit_can_be_rolled_back(
    tmp_path: Path, steps: tuple[str, ...]
) -> None:
    context = Context(tmp_path, spark=refuse_spark)
    lake = context.lake
    books = Books(lake, "s", lake.table("t"))
    run, other = (RunId(digit * 32, 1, "t") for digit in "ab")
    deltalake.write_deltalake(lake.table("t"), ROWS)
    for item in (run, other):
        books.claimed(item.name, [0], ALL)
        books.stepped(item.name, "intent", {"target_version": 0}, identity=item.identity)
        for step in steps:
            books.stepped(item.name, step, {}, identity=item.identity)
    commit(lake, run, run.change(1).version, publish=True, attempt=1)
    # A later attempt has shut it out, and not gone on: that is no publish.
    commit(lake, other, other.fence(2).version, fence=other.name, attempt=2)
    with pytest.raises(SparkStarted):
        handlers.rollback({"run": run.name}, context)
    with pytest.raises(InvalidRequestError, match="^CAP-NOT-PUBLISHED: "):
        handlers.rollback({"run": other.name}, context)
    # Who shuts it out now comes too late to undo that.
    commit(lake, run, run.fence(2).version, fence=run.name, attempt=2)
    with pytest.raises(SparkStarted):
        handlers.rollback({"run": run.name}, context)
