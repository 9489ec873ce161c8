"""What holds where all else has gone wrong: rows that are lost, commits that lose, no intent."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import IntegerType, StructField, StructType

from capstan.core.times import Box, Kind, TimeType
from capstan.core.times.region import Region
from capstan.errors import InvalidRequestError, RangeLockedError, SystemFailureError
from capstan.replay.execution.job import require_intent
from capstan.replay.execution.rollback import is_gone
from capstan.replay.planning.cursor import follow_identity
from capstan.replay.planning.planner import require_cursor
from capstan.replay.planning.request import Request
from capstan.replay.planning.target_layout import Layout
from capstan.storage.delta import delta
from capstan.storage.delta.commits import retrying
from capstan.storage.delta.delta import Commit
from capstan.storage.delta.idempotent_write import Txn
from capstan.storage.lake import Lake
from capstan.storage.ledger.runs import read_history, read_last_published
from tests.support.jvmless_lake import Books, intent_json
from tests.support.sample_streams import NAME, plan_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame

HOUR_US = 3_600_000_000
ALL = Region(Box((None,), (None,)))


@pytest.mark.parametrize(
    "lost",
    [
        "ConcurrentAppendException",
        "ConcurrentDeleteReadException",
        "ConcurrentDeleteDeleteException",
        "ConcurrentWriteException",
        "MetadataChangedException",
    ],
)
def test_lost_commits_are_retried_a_few_times(monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("time.sleep", pauses.append)
    tries: list[int] = []

    def write(loses: int) -> Commit:
        tries.append(len(tries))
        if len(tries) <= loses:
            raise PySparkException(f"io.delta.exceptions.{lost}: files were added")
        return Commit(7, {})

    assert retrying(lambda: write(2), "/t") == Commit(7, {})
    assert len(tries) == 3
    assert len(pauses) == 2
    assert 0 < pauses[0] < pauses[1]
    tries.clear()
    with pytest.raises(RangeLockedError, match="12 commits in a row to /t lost") as caught:
        retrying(lambda: write(99), "/t")
    assert (caught.value.code, caught.value.exit_code) == ("CAP-CONFLICT", 4)
    assert len(tries) == 12


def test_appends_lost_to_schema_changes_are_repeated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tries: list[str] = []

    def write_once(*_given: object) -> None:
        tries.append("")
        if len(tries) == 1:
            raise PySparkException("MetadataChangedException: the table was changed")

    monkeypatch.setattr("time.sleep", lambda _: None)
    monkeypatch.setattr(delta, "write_once", write_once)
    frame = cast("DataFrame", None)
    assert delta.append(frame, str(tmp_path), txn=Txn("a", 1), merge_schema=True) is None
    assert len(tries) == 2


def test_what_is_no_conflict_is_not_tried_again() -> None:
    tries: list[int] = []

    def write() -> Commit:
        tries.append(1)
        raise PySparkException("no space left on device")

    with pytest.raises(PySparkException, match="no space"):
        retrying(write, "/t")
    assert tries == [1]


def test_expired_versions_differ_from_other_failures() -> None:
    gone = PySparkException("[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading")
    missing = PySparkException("[DELTA_VERSION_NOT_FOUND] Cannot time travel Delta table")
    wrapped = SystemFailureError("CAP-DAMAGED", "a file cannot be read")
    wrapped.__cause__ = gone
    assert all(map(is_gone, (gone, missing, wrapped)))
    others = (
        "No space left on device",
        "AccessControlException: Permission denied",
        "FAILED_READ_FILE",
    )
    assert not any(is_gone(PySparkException(other)) for other in others)


def test_who_follows_goes_on_only_from_where_it_was_planned(lake: Lake) -> None:
    requested: dict[str, object] = {"follow": "nightly"}
    identity = follow_identity(Request(NAME, "t", **requested), lake.table("t"))  # type: ignore[arg-type]
    plan = plan_of(lake, **requested)
    books = Books(lake, NAME, lake.table("t"))
    require_cursor(plan, read_last_published(lake, identity, books.target))
    intent = intent_json(plan.request, [[3 * HOUR_US]])
    books.stepped("t-1", "intent", intent, identity=identity)
    books.stepped("t-1", "done", {"attempt": 1, "target_version": 1}, identity=identity)
    with pytest.raises(RangeLockedError, match="nightly has moved") as caught:
        require_cursor(plan, read_last_published(lake, identity, books.target))
    assert (caught.value.code, caught.value.exit_code) == ("CAP-CONFLICT", 4)
    books.stepped("t-1", "rolled-back", {}, identity=identity)
    require_cursor(plan, read_last_published(lake, identity, books.target))


def test_a_run_without_intent_has_nothing_to_finish(lake: Lake) -> None:
    books = Books(lake, NAME, lake.table("t"))
    books.failed("t-00000000-1", [0], ALL)
    with pytest.raises(InvalidRequestError, match="ended before it would have written") as caught:
        require_intent(read_history(lake, "t-00000000-1"))
    assert caught.value.code == "CAP-NO-INTENT"


def test_what_was_known_is_asked_only_of_times_that_say_it(lake: Lake) -> None:
    with pytest.raises(
        InvalidRequestError, match="times of stream little have no epoch: event"
    ) as caught:
        plan_of(lake, known_at=1)
    assert caught.value.code == "CAP-KNOWN-AT"


def test_one_column_cannot_stand_for_times_of_two_coordinates() -> None:
    layout = Layout(None, "day", {})
    schema = StructType([StructField("day", IntegerType())])
    one, two = TimeType.of(n=Kind.BIGINT), TimeType.of(epoch=Kind.BIGINT, n=Kind.BIGINT)
    assert layout.predicate(schema, one, None, Region(Box((3,), (None,)))) == "`day` >= 3L"
    with pytest.raises(InvalidRequestError, match="column day cannot hold times of 2") as caught:
        layout.predicate(schema, two, None, Region(Box.everything(two)))
    assert caught.value.code == "CAP-COORDINATES"
