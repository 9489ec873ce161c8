"""Who may change a target: runs, rollbacks and publishes that lose their claim in the midst.

Whatever another run does in the meantime is done while the first one waits at a point of its work.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from capstan.core.config import Mode
from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.errors import FencedError, InvalidRequestError, RangeLockedError
from capstan.replay.planning import plan
from capstan.replay.run import unlock
from capstan.storage.delta import delta
from capstan.storage.ledger import claims, runs
from capstan.storage.ledger.claims import Scope
from capstan.storage.ledger.run_identity import RunId, identity_of
from capstan.storage.ledger.tables import read_rows
from capstan.telemetry import instrumentation
from tests.support import lake_contents
from tests.support.meanwhile import meanwhile
from tests.support.replay_harness import Play
from tests.support.sample_streams import rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Half an hour apart, of workers a, b and c in turn.
ROWS = rows(range(96))
MORNING = {"since": "2024-05-01", "until": "2024-05-01T12:00:00"}
NOON = {"since": "2024-05-01T06:00:00", "until": "2024-05-01T18:00:00"}
MODES: dict[str, dict[str, object]] = {
    "staged": {},
    "append": {"mode": Mode.APPEND},
    "merge": {"mode": Mode.MERGE, "keys": ("id",)},
}


@pytest.fixture(scope="module")
def play(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Play:
    return Play.of(spark, tmp_path_factory.mktemp("claims"), ROWS)


def declare_dead(play: Play) -> None:
    """Declare whoever holds something dead."""
    for item in claims.active(play.lake):
        unlock(play.lake, item.run)


def ids(first: int, after: int, places: str = "abc") -> list[int]:
    return [n for n in range(first, after) if "abc"[n % 3] in places]


@pytest.mark.parametrize(
    ("how", "point"),
    [("staged", "replay.intent"), ("append", "replay.holds"), ("merge", "replay.holds")],
)
def test_a_run_that_was_unlocked_while_it_lived_is_shut_out(
    play: Play, how: str, point: str
) -> None:
    """Also where it had just seen that its claim stands: then the target itself refuses it."""
    into = f"unlocked_{how}_{point[-5:]}"

    def take() -> None:
        declare_dead(play)
        play(into, **NOON, workers=("a", "b"), **MODES[how])

    with meanwhile(point, take), pytest.raises(FencedError, match="CAP-FENCED"):
        play(into, **MORNING, **MODES[how])

    assert play.column(into) == ids(12, 36, "ab")
    assert claims.active(play.lake) == []


def test_an_interrupted_run_s_late_commit_fails(play: Play) -> None:
    def interrupt(point: str, _facts: dict[str, object]) -> None:
        if point == "replay.holds":
            raise KeyboardInterrupt

    with instrumentation.subscribe(interrupt), pytest.raises(KeyboardInterrupt):
        play("interrupted", **MORNING, **MODES["append"])
    assert claims.active(play.lake) == []
    target = play.lake.table("interrupted")
    row = read_rows(play.lake, "runs", target=target)[-1]
    run = RunId(str(row["identity"]), int(str(row["generation"])), "interrupted")

    play("interrupted", **NOON)
    # What Spark was still at when its driver was interrupted.
    orphan = play.spark.read.format("delta").load(target)
    assert delta.append(orphan, target, txn=run.change(1)) is None
    assert play.column("interrupted") == ids(12, 36)


def test_a_claim_that_ran_out_lets_another_in(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = claims.LEASE
    monkeypatch.setattr(claims, "LEASE", timedelta())

    def take() -> None:
        monkeypatch.setattr(claims, "LEASE", lease)
        play("ran_out", **NOON)

    with meanwhile("replay.audit", take), pytest.raises(FencedError, match="CAP-FENCED"):
        play("ran_out", **MORNING)
    assert play.column("ran_out") == ids(12, 36)
    # Shut out, it holds nothing.
    assert claims.active(play.lake) == []


@pytest.mark.nightly
def test_a_claim_that_ran_out_is_claimed_anew_where_nobody_came(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = claims.LEASE
    monkeypatch.setattr(claims, "LEASE", timedelta())

    def renew() -> None:
        monkeypatch.setattr(claims, "LEASE", lease)

    with meanwhile("replay.audit", renew):
        run = play.run("renewed", **MORNING)
    lake_contents.require_published_once(play.lake, run)
    mine = [row["attempt"] for row in read_rows(play.lake, "claims", run=run)]
    # Before the intent, when it had run out at once, and before the publish.
    assert mine == [1, 1, 1]


@pytest.mark.nightly
def test_a_run_with_an_expired_lock_gives_way(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = claims.LEASE
    monkeypatch.setattr(claims, "LEASE", timedelta())
    other = RunId("f" * 32, 1, "gave_way")
    scope = Scope(play.lake.table("gave_way"), None, Region(Box((None,), (None,))))

    def take() -> None:
        monkeypatch.setattr(claims, "LEASE", lease)
        claims.claim(play.lake, other, "little", scope)

    with meanwhile("replay.audit", take), pytest.raises(FencedError, match="lost its claim"):
        play("gave_way", **MORNING)
    assert play.column("gave_way") == []
    assert [item.run for item in claims.active(play.lake, scope.target)] == [other.name]
    declare_dead(play)


def test_a_rollback_holds_its_range(play: Play) -> None:
    play("taking_back", **MORNING, workers=("a",))
    run = play.run("taking_back", **MORNING)

    def refused() -> None:
        with pytest.raises(RangeLockedError, match=f"CAP-HELD.*{run}") as caught:
            play("taking_back", **NOON)
        assert caught.value.exit_code == 4

    with meanwhile("rollback.claim", refused):
        version = play.rollback(run)
    assert play.column("taking_back") == ids(0, 24, "a")
    assert claims.active(play.lake) == []
    assert play.rollback(run) == version == delta.version_of(play.lake.table("taking_back"))


@pytest.mark.parametrize("how", ["staged", pytest.param("merge", marks=pytest.mark.nightly)])
def test_a_rollback_that_was_unlocked_while_it_lived_is_shut_out(play: Play, how: str) -> None:
    into = f"rollback_{how}"
    run = play.run(into, **MORNING, **MODES[how])
    later: list[str] = []

    def take() -> None:
        declare_dead(play)
        later.append(play.run(into, **NOON, **MODES[how]))

    with meanwhile("rollback.holds", take), pytest.raises(FencedError, match="CAP-FENCED"):
        play.rollback(run)
    before = play.column(into)
    assert sorted(set(before)) == ids(0, 36)
    with pytest.raises(InvalidRequestError, match=f"CAP-LATER.*{later[0]}"):
        play.rollback(run)
    play.rollback(later[0])
    play.rollback(run)
    assert play.column(into) == []
    assert claims.active(play.lake) == []


@pytest.mark.nightly
def test_a_rollback_knows_of_a_publish_that_no_ledger_tells_yet(play: Play) -> None:
    run = play.run("untold", **MORNING)
    later: list[str] = []

    def unsaid() -> None:
        (holder,) = claims.active(play.lake)
        later.append(holder.run)
        declare_dead(play)
        with pytest.raises(InvalidRequestError, match=f"CAP-LATER.*{holder.run}"):
            play.rollback(run)

    with meanwhile("replay.publish", unsaid):
        assert play.run("untold", **NOON) == later[-1]
    lake_contents.require_published_once(play.lake, later[0])


@pytest.mark.nightly
def test_a_rollback_sees_runs_published_before_its_lock(play: Play) -> None:
    run = play.run("just_before", **MORNING)
    real = claims.claim

    with pytest.MonkeyPatch.context() as patched:

        def late(*arguments: object) -> int:
            patched.setattr(claims, "claim", real)
            play("just_before", **NOON)
            return real(*arguments)  # type: ignore[arg-type]

        patched.setattr(claims, "claim", late)
        with pytest.raises(InvalidRequestError, match="CAP-LATER"):
            play.rollback(run)
    assert play.column("just_before") == ids(0, 36)
    assert claims.active(play.lake) == []


class Cut(Exception):
    """Where a process ends, as far as its ledgers can tell."""


def cut() -> None:
    raise Cut


@pytest.mark.nightly
def test_the_next_command_records_an_unrecorded_rollback(play: Play) -> None:
    into = "cut_append"
    run = play.run(into, **MORNING, mode=Mode.APPEND)
    with meanwhile("rollback.publish", cut), pytest.raises(Cut):
        play.rollback(run)
    assert play.column(into) == []

    again = play(into, **MORNING, mode=Mode.APPEND)

    assert (again.unchanged, again.certificate.generation) == (False, 2)
    assert play.column(into) == ids(0, 24)
    assert [row.step for row in runs.read_history(play.lake, run).rows][-1] == "rolled-back"
    assert claims.active(play.lake) == []


def test_a_waiting_run_is_published_after_its_lock_dies(play: Play) -> None:
    run = play.run("waited", **MORNING, hold=True)
    declare_dead(play)
    other = play.run("waited", **NOON)
    with pytest.raises(InvalidRequestError, match=f"CAP-LATER.*{other}"):
        play.publish(run)
    play.rollback(other)
    assert claims.active(play.lake) == []

    done = play.publish(run)

    # What was played is the first attempt's, which the other run has shut out.
    assert done.certificate.attempt == 1
    assert runs.read_history(play.lake, run).last.attempt == 2
    lake_contents.require_published_once(play.lake, run)
    assert play.column("waited") == ids(0, 24)
    assert play.publish(run).unchanged
    play.rollback(run)
    assert play.column("waited") == []


def test_what_waits_is_not_published_by_two(play: Play) -> None:
    run = play.run("by_two", **MORNING, hold=True, mode=Mode.APPEND)
    declare_dead(play)
    with (
        meanwhile("replay.holds", lambda: play.publish(run)),
        pytest.raises(FencedError, match="CAP-FENCED"),
    ):
        play.publish(run)
    assert play.column("by_two") == ids(0, 24)
    lake_contents.require_published_once(play.lake, run)


@pytest.mark.nightly
def test_an_interrupted_publish_attempt_is_finished(play: Play) -> None:
    run = play.run("cut_publish", **MORNING, hold=True)
    declare_dead(play)
    with meanwhile("replay.publish", cut), pytest.raises(Cut):
        play.publish(run)
    done = play.publish(run)
    assert (done.unchanged, done.certificate.attempt) == (False, 1)
    assert play.column("cut_publish") == ids(0, 24)
    lake_contents.require_published_once(play.lake, run)


@pytest.mark.nightly
def test_a_rollback_whose_rows_of_before_are_gone_is_refused(play: Play) -> None:
    play("vacuumed", **MORNING, workers=("a",))
    run = play.run("vacuumed", **MORNING)
    check = "spark.databricks.delta.retentionDurationCheck.enabled"
    play.spark.conf.set(check, "false")
    try:
        play.spark.sql(f"VACUUM delta.`{play.lake.table('vacuumed')}` RETAIN 0 HOURS")
    finally:
        play.spark.conf.unset(check)
    version = delta.version_of(play.lake.table("vacuumed"))
    with pytest.raises(InvalidRequestError, match="CAP-GONE.*is no longer kept"):
        play.rollback(run)
    # Refused, it holds nothing, and what it published stands.
    assert delta.version_of(play.lake.table("vacuumed")) == version
    assert claims.active(play.lake) == []
    assert play("vacuumed", **MORNING).unchanged


def test_a_replay_whose_name_another_one_has_plays_its_own(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two identities that begin with the same digits: they are hashes, cut short in names."""
    monkeypatch.setattr(plan, "identity_of", lambda **parts: "0" * 8 + identity_of(**parts)[8:])
    first = play.run("alike", **MORNING)

    second = play("alike", **NOON)

    assert play.column("alike") == ids(0, 36)
    own = str(second.certificate.run)
    assert (first, len(own)) == ("alike-00000000-1", len("alike-00000000xxxx-1"))
    assert play("alike", **NOON).certificate.run == own
    play.rollback(own)
    assert play.column("alike") == ids(0, 24)
    assert play.run("alike", **MORNING) == first


def test_two_that_take_the_same_name_at_once(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "identity_of", lambda **parts: "1" * 8 + identity_of(**parts)[8:])

    def take() -> None:
        # It was named before the first one wrote anything.
        with monkeypatch.context() as early:
            early.setattr(runs, "name_run", lambda _, identity, *__: RunId(identity, 1, "at_once"))
            with pytest.raises(FencedError, match="CAP-FENCED.*under the same name"):
                play("at_once", **NOON)

    with meanwhile("replay.intent", take), pytest.raises(FencedError, match="CAP-FENCED"):
        play("at_once", **MORNING)

    play("at_once", **NOON)
    play("at_once", **MORNING)
    assert play.column("at_once") == ids(0, 36)
