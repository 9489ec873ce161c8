"""A driver killed at every write point of replay; then the same command ends in the same target."""

from __future__ import annotations

import pytest

from capstan.errors import CheckFailedError, RangeLockedError
from capstan.replay.run import unlock
from capstan.storage.delta import delta
from capstan.storage.lake import children
from capstan.storage.ledger import claims, runs
from tests.support import lake_contents
from tests.support.crash_cases import REPLAY_POINTS, ROLLBACK_POINTS, Asked, Work, cases
from tests.support.small_stream import BEFORE, REQUESTS, STAGED

pytestmark = pytest.mark.timeout(1800)

# Requests by name, and the points at which a replay of each is cut off.
POINTS = {
    "staged": REPLAY_POINTS,
    "follow": ["replay.audit", "replay.publish"],
    "append": ["replay.publish"],
    "merge": ["replay.publish"],
}
HELD = {**STAGED, "hold": True}
WRONG = {**STAGED, "workers": None, "into": "wrong", "transform": "wrong"}


def replaying(request: dict[str, object]) -> Asked:
    return Asked("replay", {"request": request})


REPLAYS = [
    Work("replay", point, {"request": REQUESTS[name]}, name)
    for name, points in POINTS.items()
    for point in points
]
PIPED = [
    Work("replay", point, {"request": REQUESTS["piped"]}, "piped")
    for point in ("replay.aside", "replay.metrics", "replay.publish")
]
PUBLISHES = [
    Work("publish", point).after(replaying(BEFORE), replaying(HELD))
    for point in ("replay.publish", "replay.coverage", "replay.certificate")
]
ROLLBACKS = [
    Work("rollback", point).after(replaying(BEFORE), replaying(STAGED)) for point in ROLLBACK_POINTS
]
ADDING = [
    Work("rollback", "rollback.publish", name=name).after(replaying(REQUESTS[name]))
    for name in ("append", "merge")
]
FAILING = Work("replay", "audit.findings", {"request": WRONG})
APPROVED = Work("publish", "replay.approved", {"by": "ann"}).after(
    replaying({**STAGED, "approve": True})
)
AUDITED = Work("replay", "replay.audited", {"request": HELD})
REJECTED = Work("reject", "replay.rejected", {"by": "ann"}).after(replaying(HELD))
# The claim of the run is dead before somebody publishes it.
UNLOCKED = Work("publish", "publish.claim").after(replaying(HELD), Asked("unlock"))
# A second attempt while the first one hangs, and one of another run once that was unlocked.
HANGS = Work("replay", "replay.intent", {"request": BEFORE})
FENCING = Work("replay", "replay.fence", {"request": BEFORE}).after(HANGS)
SHUTTING_OUT = Work("replay", "replay.shut-out", {"request": STAGED}).after(HANGS, Asked("unlock"))
DEAD = Work("replay", "replay.claim", {"request": STAGED})


def require_stands(world, name: str, run: str) -> None:
    """Check that a run is done, has cleaned up, and the same request changes nothing any more."""
    lake_contents.require_published_once(world.lake, run)
    assert children(f"{world.lake.root}/staging") == []
    target = world.lake.table(REQUESTS[name]["into"])
    version = delta.version_of(target)
    again = world.replay(REQUESTS[name])
    assert (again["run"], again["unchanged"]) == (run, True)
    assert delta.version_of(target) == version


def require_same_target(world, name: str, whole) -> dict[str, object]:
    """Check what the same replay, once more, comes to; its certificate."""
    done = world.replay(REQUESTS[name])
    assert lake_contents.table(world.lake, REQUESTS[name]["into"]) == whole[name]
    require_stands(world, name, done["run"])
    return done["certificate"]


@pytest.mark.parametrize(
    "work",
    cases(
        REPLAYS,
        core=["staged-replay.publish"],
        stored=["staged-replay.staging", "staged-replay.publish"],
        # Others are cut off at these points as well.
        night=["follow-replay.audit"],
    ),
)
def test_a_killed_replay_ends_in_the_same_target(killed, whole, work) -> None:
    require_same_target(killed, work.name, whole)


@pytest.mark.parametrize("work", cases(PIPED))
def test_a_killed_pipeline_publishes_one_attempt_s_side_outputs(killed, whole, work) -> None:
    certificate = require_same_target(killed, "piped", whole)
    (printed,) = certificate["pipeline"]["put_aside"]
    own = [("run", "=", certificate["run"]), ("attempt", "=", certificate["attempt"])]
    aside = delta.open_table(killed.lake.side_outputs("places")).to_pyarrow_table(filters=own)
    assert aside.num_rows == printed["rows"] > 0
    metrics = delta.open_table(killed.lake.ledger("metrics")).to_pyarrow_table(filters=own)
    assert sorted(set(metrics["node"].to_pylist())) == ["by_hour", "hours", "odd", "rows"]


@pytest.mark.parametrize(
    "work",
    cases(
        PUBLISHES,
        night=["replay.coverage", "replay.certificate"],
        stored=["replay.publish", "replay.coverage"],
    ),
)
def test_a_killed_publish_of_a_held_run_publishes_once(killed, whole, work) -> None:
    run = killed.act("publish")["run"]
    assert lake_contents.table(killed.lake, "staged") == whole["over"]
    version = delta.version_of(killed.lake.table("staged"))
    assert killed.act("publish")["unchanged"]
    assert delta.version_of(killed.lake.table("staged")) == version
    require_stands(killed, "staged", run)


@pytest.mark.parametrize("work", cases([APPROVED]))
def test_a_killed_publish_keeps_its_approval(killed, whole, work) -> None:
    [waits] = claims.active(killed.lake)
    assert lake_contents.rows(killed.lake.table("staged")) == []
    # It was approved by one person, for good, and goes on whoever has it done again.
    done = killed.act("publish")
    assert done["run"] == waits.run
    assert done["certificate"]["approval"]["by"] == "ann"
    assert lake_contents.rows(killed.lake.table("staged")) == whole["staged"]["rows"]
    lake_contents.require_published_once(killed.lake, done["run"])
    steps = [row.step for row in runs.read_history(killed.lake, done["run"]).rows]
    assert steps == ["intent", "audited", "approved", "done"]
    again = killed.act("publish", by="bob")
    assert (again["run"], again["unchanged"]) == (done["run"], True)
    assert children(f"{killed.lake.root}/staging") == []


@pytest.mark.parametrize("work", cases(ROLLBACKS, stored=["rollback.publish", "rollback.coverage"]))
def test_a_killed_rollback_takes_back_once(killed, whole, work) -> None:
    run = list(runs.read_histories(killed.lake))[-1]
    version = killed.act("rollback", run=run)["version"]
    assert lake_contents.table(killed.lake, "staged") == whole["before"]
    assert delta.version_of(killed.lake.table("staged")) == version
    assert killed.act("rollback", run=run)["version"] == version
    assert delta.version_of(killed.lake.table("staged")) == version
    assert claims.active(killed.lake) == []
    again = killed.replay(STAGED)["run"]
    assert again != run
    assert lake_contents.rows(killed.lake.table("staged")) == whole["over"]["rows"]
    lake_contents.require_published_once(killed.lake, again)


@pytest.mark.parametrize("work", cases(ADDING, core=["append-rollback.publish"]))
def test_a_killed_rollback_of_added_rows_takes_back_once(killed, whole, work) -> None:
    name = work.name
    into = REQUESTS[name]["into"]
    run = list(runs.read_histories(killed.lake))[-1]
    killed.act("rollback", run=run)
    assert lake_contents.table(killed.lake, into) == {"rows": [], "standing": []}
    assert claims.active(killed.lake) == []
    again = killed.replay(REQUESTS[name])["run"]
    assert lake_contents.rows(killed.lake.table(into)) == whole[name]["rows"]
    lake_contents.require_published_once(killed.lake, again)


@pytest.mark.parametrize("work", cases([FAILING]))
def test_a_killed_run_whose_audit_fails_leaves_nothing(killed, work) -> None:
    with pytest.raises(CheckFailedError, match="CAP-AUDIT"):
        killed.act("replay", **work.arguments)
    assert lake_contents.table(killed.lake, "wrong") == {"rows": [], "standing": []}
    actual = delta.open_table(killed.lake.ledger("findings")).to_pyarrow_table()
    assert set(actual["code"].to_pylist()) <= {"CAP-MISSING", "CAP-EXTRA", "CAP-CHANGED"}
    assert actual.num_rows > 0
    assert claims.active(killed.lake) == []


@pytest.mark.parametrize("work", cases([AUDITED]))
def test_a_run_that_was_killed_once_it_waits_is_published(killed, whole, work) -> None:
    run = killed.act("publish")["run"]
    assert lake_contents.table(killed.lake, "staged") == whole["staged"]
    require_stands(killed, "staged", run)


@pytest.mark.parametrize("work", cases([REJECTED]))
def test_a_rejection_that_was_killed_stands(killed, whole, work) -> None:
    assert killed.act("reject", by="bob")["step"] == "rejected"
    run, history = next(iter(runs.read_histories(killed.lake).items()))
    assert [row.step for row in history.rows] == ["intent", "audited", "rejected"]
    assert history.last.detail["by"] == "ann"
    assert lake_contents.rows(killed.lake.table("staged")) == []
    assert children(f"{killed.lake.root}/staging") == [f"{run}-1"]
    assert claims.active(killed.lake) == []
    # Asked for again, it is a new attempt of the same run.
    assert killed.replay(STAGED)["run"] == run
    assert lake_contents.table(killed.lake, "staged") == whole["staged"]
    require_stands(killed, "staged", run)


@pytest.mark.parametrize("work", cases([UNLOCKED]))
def test_a_publish_killed_after_its_lock_publishes_once(killed, whole, work) -> None:
    run = killed.act("publish")["run"]
    assert lake_contents.table(killed.lake, "staged") == whole["staged"]
    require_stands(killed, "staged", run)


@pytest.mark.parametrize("work", cases([FENCING, SHUTTING_OUT]))
def test_who_was_killed_while_it_shut_others_out_goes_on(killed, whole, work) -> None:
    run = killed.act("replay", **work.arguments)["run"]
    expected = "before" if work is FENCING else "staged"
    assert lake_contents.table(killed.lake, "staged") == whole[expected]
    lake_contents.require_published_once(killed.lake, run)
    assert children(f"{killed.lake.root}/staging") == []


@pytest.mark.parametrize("work", cases([DEAD]))
def test_a_dead_run_holds_its_range_until_it_is_unlocked(killed, whole, work) -> None:
    narrower = {**STAGED, "workers": ["west"]}
    with pytest.raises(RangeLockedError) as refused:
        killed.replay(narrower)
    dead = refused.value.fields["holder"]
    assert unlock(killed.lake, dead) == 1
    lake_contents.require_published_once(killed.lake, killed.replay(narrower)["run"])
    assert killed.replay(STAGED)["run"] == dead
    assert lake_contents.rows(killed.lake.table("staged")) == whole["staged"]["rows"]
