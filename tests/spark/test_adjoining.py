"""Copies of adjoining intervals: carried out together, they leave what single runs leave."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from capstan.backfill.planner import BackfillMode, BackfillRequest
from capstan.backfill.run import BackfillResult, prepare
from capstan.core.config import Creation, Mode, Order, Replay, Target
from capstan.core.config.row_checks import Check
from capstan.replay.execution import job_set
from capstan.replay.planning.planner import make_plan
from capstan.replay.run import replay, unlock
from capstan.storage.delta import delta
from capstan.storage.delta.staged_rows import missing_file
from capstan.storage.lake import children
from capstan.storage.ledger import claims, runs
from capstan.storage.ledger.claims import Scope
from capstan.storage.ledger.run_identity import RunId
from capstan.storage.ledger.runs import Step
from capstan.storage.ledger.tables import read_rows
from capstan.telemetry.instrumentation import subscribe
from tests.bench.counters import Watch, commits
from tests.support import lake_contents
from tests.support.contexts import backfill
from tests.support.meanwhile import meanwhile
from tests.support.replay_harness import Play
from tests.support.sample_streams import NAME, START, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAYS = 5
PER_DAY = 48
UNTIL = START + timedelta(days=DAYS)


@pytest.fixture(scope="module")
def play(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Play:
    """Five complete days of three workers, and a part of another one."""
    special: dict[str, dict[str, Any]] = {
        "few": {"columns": ("id", "amount")},
        "own_time": {"time": "at"},
        "clustered": {"create": Creation(cluster_by=("id",))},
        "by_place": {"create": Creation(partition_by=("place", "_worker"))},
    }
    targets = {
        f"{name}_{side}": Target(name=f"{name}_{side}", **fields)
        for name, fields in special.items()
        for side in ("alone", "together")
    }
    content = rows(range((DAYS + 1) * PER_DAY))
    return Play.of(spark, tmp_path_factory.mktemp("adjoining"), content, targets=targets)


def declared(play: Play, into: str, **fields: Any) -> Play:
    """The same lake, with a declared replay that has the name of its table."""
    item = Replay(
        name=into, **{"stream": NAME, "target": into, "since": START, "until": UNTIL, **fields}
    )
    return replace(play, declarations=replace(play.declarations, replays={into: item}))


def fill(
    play: Play, into: str, fields: dict[str, Any] | None = None, **asked: Any
) -> BackfillResult:
    """Backfill a table by days, a run for each."""
    known = declared(play, into, **(fields or {}))
    request = BackfillRequest(into, **{"chunk": 1, "every": "1 day", **asked})
    return backfill(play.spark, play.lake, known.declarations, request)


def one_by_one(play: Play, into: str, fields: dict[str, Any] | None = None, **asked: Any) -> None:
    """The same by a replay for each day."""
    known = declared(play, into, **(fields or {}))
    request = BackfillRequest(into, **{"chunk": 1, "every": "1 day", **asked})
    for each in prepare(play.lake, known.declarations, request).replays:
        replay(play.spark, play.lake, known.declarations, each)


def published(result: BackfillResult) -> list[str]:
    """The names of the runs that a backfill has published, in order."""
    assert result.error is None
    value = result.to_json()
    return [str(run["run"]) for run in value["runs"] if run["published"]]  # type: ignore[attr-defined]


def ids(play: Play, into: str) -> list[object]:
    """The rows of a table, by their numbers."""
    return play.column(into)


@pytest.fixture
def apart() -> Any:
    """The reasons for which runs were carried out one by one."""
    reasons: list[object] = []
    with subscribe(lambda p, facts: reasons.append(facts) if p == "replay.apart" else None):
        yield reasons


def steps(play: Play, into: str) -> list[dict[str, Any]]:
    """The rows of the runs into a table, without what differs from run to run."""
    found = read_rows(play.lake, "runs", target=play.lake.table(into))
    told = []
    for row in found:
        detail = json.loads(row["detail"])
        certificate = detail if row["step"] == Step.DONE else detail["certificate"]
        for value in (detail, certificate, detail.get("request", {})):
            for name in ("run", "target", "target_path", "into", "replay", "seconds", "table"):
                value.pop(name, None)
        # Of all runs of a set it is that of the target before the first publish.
        version = detail.pop("target_version")
        told.append(
            {
                **{name: row[name] for name in ("generation", "attempt", "step", "stream")},
                "detail": detail,
                "version": version if row["step"] == Step.DONE else None,
            }
        )
    return sorted(told, key=lambda row: (row["step"], str(row["detail"])))


def covered(play: Play, into: str) -> list[dict[str, Any]]:
    """The coverage of a table, without what differs from run to run."""
    found = read_rows(play.lake, "coverage", target=play.lake.table(into))
    left_out = ("target", "run", "at", "table")
    told = [{k: v for k, v in row.items() if k not in left_out} for row in found]
    assert {row["table"] for row in found} == {delta.identity_of(play.lake.table(into))}
    return sorted(told, key=lambda row: (row["since"], row["worker"] or 0))


def changes(play: Play, into: str) -> list[tuple[Any, ...]]:
    """The commits to a table: notes, metrics, and what its files state."""
    told = []
    for version in range(1, (play.version(into) or 0) + 1):
        actions = list(delta.read_commit(play.lake.table(into), version))
        [info] = [action["commitInfo"] for action in actions if "commitInfo" in action]
        note = json.loads(info["userMetadata"])["capstan"]
        for name in ("run", "token"):
            note.pop(name)
        adds = [action["add"] for action in actions if "add" in action]
        stated = [
            (
                sorted(add["partitionValues"].items()),
                add["path"].rpartition("/")[0],
                add["stats"],
                sorted(add.get("tags") or {}),
            )
            for add in adds
        ]
        info["operationMetrics"].pop("numOutputBytes")
        about = (info["operation"], info["operationParameters"]["mode"], info["operationMetrics"])
        txns = [(t["txn"]["version"]) for t in actions if "txn" in t]
        kinds = Counter(next(iter(action)) for action in actions)
        told.append((note, about, sorted(stated, key=str), txns, kinds))
    return told


def staged(play: Play, into: str) -> list[str]:
    """The lists of files that runs have staged for a table."""
    names = children(play.lake.staging(""))
    return [play.lake.staging(name) for name in names if name.startswith(into)]


CASES: dict[str, dict[str, Any]] = {
    "copy": {},
    "newest": {},
    "appended": {"mode": Mode.APPEND},
    "two": {"workers": ("a", "c")},
    "few": {},
    "own_time": {},
    "clustered": {},
    "by_place": {},
}


@pytest.mark.parametrize("case", CASES)
def test_together_is_as_one_by_one(play: Play, apart: list[object], case: str) -> None:
    fields, (alone, together) = CASES[case], (f"{case}_alone", f"{case}_together")
    order = Order.NEWEST if case == "newest" else Order.OLDEST
    one_by_one(play, alone, fields, order=order)
    done = published(fill(play, together, fields, order=order))
    assert apart == []
    assert len(set(done)) == DAYS
    table = play.lake.table(together)
    assert lake_contents.rows(table) == lake_contents.rows(play.lake.table(alone))
    assert covered(play, together) == covered(play, alone)
    assert steps(play, together) == steps(play, alone)
    assert changes(play, together) == changes(play, alone)
    assert [name for name in children(table) if name.startswith("apart")] == []
    # Polars takes partitions from paths.
    wanted = [n for n in range(DAYS * PER_DAY) if case != "two" or n % 3 != 1]
    assert ids(play, together) == wanted
    # Each stands by itself.
    assert fill(play, together, fields).replays == ()
    if case != "appended":
        again = fill(play, together, fields, what=BackfillMode.ALL)
        assert again.to_json()["unchanged"] == DAYS


def test_a_set_costs_the_jobs_of_a_run(play: Play, apart: list[object]) -> None:
    root = Path(play.lake.root)
    counted = {}
    for days in (1, 2, DAYS):
        into = f"counted_{days}"
        seen: set[Path] = set()
        before = commits(root)

        def listen(point: str, _: dict[str, object], seen: set[Path] = seen) -> None:
            if point == "replay.staging":
                seen.update(commits(root))

        until = (START + timedelta(days=days)).isoformat()
        with Watch(play.spark) as watch, subscribe(listen):
            assert len(published(fill(play, into, until=until))) == days
        made = Counter(p.relative_to(root).parts[0] for p in (seen | commits(root)) - before)
        counted[days] = watch.jobs, made
    assert apart == []
    jobs = {days: count for days, (count, _) in counted.items()}
    assert jobs[DAYS] == jobs[2] <= jobs[1] + 2
    # One for each ledger; of each run a list of its files, and its publish after the creation.
    for days in (2, DAYS):
        assert counted[days][1] == {"ledger": 4, "staging": days, "tables": days + 1}


def test_one_that_is_rolled_back_leaves_the_others(play: Play) -> None:
    done = published(fill(play, "back"))
    before = ids(play, "back")
    play.rollback(done[2])
    gone = set(range(2 * PER_DAY, 3 * PER_DAY))
    assert set(ids(play, "back")) == set(before) - gone
    again = fill(play, "back")
    assert [str(run["since"])[:10] for run in again.to_json()["runs"]] == ["2024-05-03"]  # type: ignore[attr-defined]
    assert ids(play, "back") == before
    for run in done[:2] + done[3:]:
        lake_contents.require_published_once(play.lake, run)


@pytest.mark.parametrize("keep_going", [False, True])
def test_one_that_fails_its_check_is_told_of_alone(
    play: Play, apart: list[object], keep_going: bool
) -> None:
    into = f"checked_{int(keep_going)}"
    bad = 2 * PER_DAY + 7
    checks = (Check(name="no_bad", sql=f"id != {bad}"),)
    actual = fill(play, into, {"checks": checks}, keep_going=keep_going)
    assert len(apart) >= 1
    value = actual.to_json()
    errors = [run.get("error") for run in value["runs"]]  # type: ignore[attr-defined]
    assert errors == [None, None, "CAP-CHECK", None, None]
    assert (value["done"], value["left"]) == ((4, 0) if keep_going else (2, 2))
    days = (0, 1, 3, 4) if keep_going else (0, 1)
    wanted = [day * PER_DAY + n for day in days for n in range(PER_DAY)]
    assert ids(play, into) == wanted
    found = read_rows(play.lake, "findings", target=play.lake.table(into))
    assert len({row["run"] for row in found}) == 1
    assert claims.active(play.lake) == []


def test_a_range_that_another_run_holds_is_not_waited_for(play: Play) -> None:
    into = "held"
    known = declared(play, into).declarations
    request = BackfillRequest(into, chunk=1, every="1 day")
    third = prepare(play.lake, known, request).replays[2]
    plan = make_plan(play.lake, known, third)
    foreign = RunId("f" * 32, 1, "foreign")
    attempt = claims.claim(play.lake, foreign, NAME, Scope(plan.target, None, plan.region))
    actual = fill(play, into)
    assert actual.error is not None
    assert actual.error.code == "CAP-HELD"
    assert ids(play, into) == list(range(2 * PER_DAY))
    claims.release(play.lake, foreign.name, attempt)
    assert len(published(fill(play, into))) == DAYS - 2
    assert ids(play, into) == list(range(DAYS * PER_DAY))


def test_of_two_at_once_the_second_takes_over(play: Play) -> None:
    """As the same command does after a kill, which may be why it was given again."""
    into = "twice"
    second: list[BackfillResult] = []
    with meanwhile(
        "replay.intent",
        lambda: second.append(fill(play, into, since="2024-05-02", until="2024-05-05")),
    ):
        first = fill(play, into)
    assert len(published(second[0])) == 3
    codes = [None if run.error is None else run.error.code for run in first.results]
    assert codes == [None, "CAP-FENCED"]
    assert len(published(fill(play, into))) == 1
    assert ids(play, into) == list(range(DAYS * PER_DAY))
    for run in runs.read_histories(play.lake, target=play.lake.table(into)):
        lake_contents.require_published_once(play.lake, run)


def test_of_two_that_overlap_one_gives_way(play: Play) -> None:
    into = "overlapping"
    second: list[BackfillResult] = []
    with meanwhile(
        "replay.intent", lambda: second.append(fill(play, into, every="12 hours", chunk=3))
    ):
        assert len(published(fill(play, into))) == DAYS
    assert second[0].error is not None
    assert second[0].error.code == "CAP-HELD"
    assert ids(play, into) == list(range(DAYS * PER_DAY))


def test_of_two_that_claim_at_once_one_gives_way(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second claims after the first has looked, and before it has claimed."""
    into, second = "at_once", list[BackfillResult]()
    claim_all = claims.claim_all

    def late(*args: Any) -> Any:
        monkeypatch.setattr(claims, "claim_all", claim_all)
        second.append(fill(play, into, since="2024-05-02", until="2024-05-05"))
        return claim_all(*args)

    monkeypatch.setattr(claims, "claim_all", late)
    first = fill(play, into)
    # The second had ended by then, so the first goes on where it has nothing to do any more.
    assert first.error is None
    assert len(published(second[0])) == 3
    assert ids(play, into) == list(range(DAYS * PER_DAY))
    for run in runs.read_histories(play.lake, target=play.lake.table(into)):
        lake_contents.require_published_once(play.lake, run)


def test_rows_that_others_add_meanwhile_are_replaced(play: Play, apart: list[object]) -> None:
    into = "meanwhile"

    def add() -> None:
        play.sql(
            "INSERT INTO {table} SELECT 0 AS _worker, named_struct('event', "
            "TIMESTAMP '2024-05-02 03:00:00') AS _time, 999 AS id, 'a' AS place, "
            "TIMESTAMP '2024-05-02 03:00:00' AS at, 1 AS amount, 'x' AS note",
            into,
        )

    with meanwhile("replay.holds", add):
        assert len(published(fill(play, into))) == DAYS
    assert apart == []
    assert ids(play, into) == list(range(DAYS * PER_DAY))


def test_a_table_that_is_altered_meanwhile_gets_the_rows_anew(
    play: Play, apart: list[object]
) -> None:
    into = "altered"
    with meanwhile(
        "replay.holds", lambda: play.sql("ALTER TABLE {table} SET TBLPROPERTIES ('x' = 'y')", into)
    ):
        done = published(fill(play, into))
    assert (len(done), apart) == (DAYS, [])
    assert ids(play, into) == list(range(DAYS * PER_DAY))
    for run in done:
        lake_contents.require_published_once(play.lake, run)


@pytest.mark.parametrize("point", ["replay.claim", "replay.intent", "replay.publish"])
def test_one_that_is_unlocked_meanwhile_is_shut_out(play: Play, point: str) -> None:
    into = f"unlocked_{point.rpartition('.')[2]}"

    def third() -> None:
        held = sorted(claims.active(play.lake), key=lambda claim: claim.ordinal)
        assert len(held) == DAYS
        assert unlock(play.lake, held[2].run) == 1

    with meanwhile(point, third):
        actual = fill(play, into)
    assert claims.active(play.lake) == []
    # Before anything is written for it, it is begun again, as by the same command.
    errors = [] if point == "replay.claim" else ["CAP-FENCED"]
    assert [run.error.code for run in actual.results if run.error is not None] == errors
    assert len(actual.results) == (3 if errors else DAYS)
    assert ids(play, into) == list(range((2 if errors else DAYS) * PER_DAY))
    # What was staged stays until a later attempt has published, as that of a single run.
    assert len(staged(play, into)) == (3 if errors else 0)
    table = play.lake.table(into)
    assert all(missing_file(table, listing) is None for listing in staged(play, into))
    assert fill(play, into).error is None
    assert staged(play, into) == []
    committed = delta.open_table(table).file_uris()
    assert len(committed) == len(list(Path(table).glob("_worker=*/*.parquet")))
    assert ids(play, into) == list(range(DAYS * PER_DAY))
    histories = runs.read_histories(play.lake, target=play.lake.table(into))
    assert len(histories) == DAYS
    for run, history in histories.items():
        assert history.published
        lake_contents.require_published_once(play.lake, run)
    assert claims.active(play.lake) == []


def test_an_interrupt_ends_all_claims(play: Play) -> None:
    into = "interrupted"

    def stop() -> None:
        raise KeyboardInterrupt

    with meanwhile("replay.publish", stop), pytest.raises(KeyboardInterrupt):
        fill(play, into)
    assert claims.active(play.lake) == []
    assert fill(play, into).error is None
    assert ids(play, into) == list(range(DAYS * PER_DAY))
    for run in runs.read_histories(play.lake, target=play.lake.table(into)):
        lake_contents.require_published_once(play.lake, run)


def test_a_wrong_row_in_one_publishes_none_before_it_was_audited_alone(
    play: Play, monkeypatch: pytest.MonkeyPatch, apart: list[object]
) -> None:
    """What is staged is altered; the audit of all finds it, and each run is made anew."""
    stage_all, published_before = job_set.stage_all, list[object]()

    def wrong(plan: Any, frame: Any, *more: Any) -> Any:
        altered = frame.withColumn("amount", frame["amount"] + (frame["id"] == 100).cast("int"))
        return stage_all(plan, altered, *more)

    monkeypatch.setattr(job_set, "stage_all", wrong)
    with subscribe(
        lambda p, _: published_before.append(len(apart)) if p == "replay.publish" else None
    ):
        done = published(fill(play, "wrong"))
    assert len(done) == DAYS
    assert published_before[0] >= 1
    amounts = dict(play.rows("wrong").select("id", "amount").rows())
    assert amounts[100] == 100 * 7 % 100
    assert [n for n in children(play.lake.staging("")) if n.startswith("wrong")] == []
