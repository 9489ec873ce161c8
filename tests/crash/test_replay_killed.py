"""A driver killed at every write point of replay; then the same command ends in the same target."""

from __future__ import annotations

from functools import partial

import pytest

from capstan.errors import AnswerIsNo, Held
from capstan.ledger import claims, runs
from capstan.replay.run import unlock
from capstan.tape import delta
from capstan.tape.lake import children
from capstan.testing import contents
from capstan.testing.little import BEFORE, REQUESTS, STAGED

pytestmark = pytest.mark.timeout(1800)

REPLAYS = [
    ("staged", "verify.ledger"),
    ("staged", "replay.claim"),
    ("staged", "replay.target"),
    ("staged", "replay.intent"),
    ("staged", "replay.staging"),
    ("staged", "replay.audit"),
    ("staged", "replay.holds"),
    ("staged", "replay.publish"),
    ("staged", "replay.coverage"),
    ("staged", "replay.certificate"),
    ("direct", "replay.publish"),
    ("direct", "replay.audit"),
    ("direct", "replay.coverage"),
    ("follow", "replay.audit"),
    ("follow", "replay.publish"),
    ("append", "replay.publish"),
    ("merge", "replay.publish"),
    ("piped", "replay.aside"),
    ("piped", "replay.metrics"),
    ("piped", "replay.publish"),
]
PUBLISHES = ["replay.publish", "replay.coverage", "replay.certificate"]
ROLLBACKS = [
    "rollback.claim",
    "rollback.holds",
    "rollback.publish",
    "rollback.coverage",
    "rollback.ledger",
]
ADDING = [("append", "rollback.publish"), ("merge", "rollback.publish")]
WRONG = {**STAGED, "workers": None, "into": "wrong", "transform": "wrong"}
# Of a run whose audit fails: staged, and direct, which takes back what it has published.
FAILING = ["audit.findings", "replay.publish", "rollback.publish"]

# Steps over a run that waits for somebody; the claim of `unlocked` is dead before it.
WAITING: list[tuple[str, str, str, dict[str, object]]] = [
    ("rejected", "reject", "replay.rejected", {"by": "ann"}),
    ("unlocked", "publish", "publish.claim", {}),
]
SUCCESSORS = [("fence", BEFORE, "replay.fence"), ("shut out", STAGED, "replay.shut-out")]

# What is cut off here at points where others of the list are cut off as well.
AGAIN = {
    ("direct", "replay.publish"),
    ("direct", "replay.audit"),
    ("direct", "replay.coverage"),
    ("follow", "replay.audit"),
    ("publish", "replay.coverage"),
    ("publish", "replay.certificate"),
    ("rollback", "append", "rollback.publish"),
    ("failing", "replay.publish"),
}


def values(kind) -> tuple[str, ...]:
    """The values of a parameter, of which there may be one only."""
    return kind if isinstance(kind, tuple) else (kind,)


def kinds(found, *of):
    """Parameters of a test; those that are also in `AGAIN`, after `of`, are left to the night."""
    return [
        pytest.param(*each, marks=pytest.mark.nightly if (*of, *each) in AGAIN else ())
        for each in map(values, found)
    ]


def begin(worlds, recorded, night, found, *of):
    """Each kind that is asked for, after `of`, with a world of its own."""
    for each in found:
        place = (*of, *values(each))
        if night or place not in AGAIN:
            worlds[place] = recorded()
            yield each, worlds[place]


@pytest.fixture(scope="module")
def killed(request, recorded, kill):
    """Worlds by what was cut off in them, and at which point."""
    worlds, script = {}, []
    night = any(item.get_closest_marker("nightly") for item in request.session.items)
    begun = partial(begin, worlds, recorded, night)
    for (name, point), world in begun(REPLAYS):
        script.append(world.step("replay", point, request=REQUESTS[name]))
    for point, world in begun(PUBLISHES, "publish"):
        script.append(world.step("replay", request=BEFORE))
        script.append(world.step("replay", request={**STAGED, "hold": True}))
        script.append(world.step("publish", point))
    for point, world in begun(ROLLBACKS, "rollback"):
        script.append(world.step("replay", request=BEFORE))
        script.append(world.step("replay", request=STAGED))
        script.append(world.step("rollback", point))
    for (name, point), world in begun(ADDING, "rollback"):
        script.append(world.step("replay", request=REQUESTS[name]))
        script.append(world.step("rollback", point))
    for point, world in begun(FAILING, "failing"):
        wrong = {**WRONG, "direct": point != "audit.findings"}
        script.append(world.step("replay", point, request=wrong))
    for name, action, point, more in WAITING:
        world = worlds["waiting", name] = recorded()
        script.append(world.step("replay", request={**STAGED, "hold": True}))
        if name == "unlocked":
            script.append(world.step("unlock"))
        script.append(world.step(action, point, **more))
    world = worlds["audited"] = recorded()
    script.append(world.step("replay", "replay.audited", request={**STAGED, "hold": True}))
    # A second attempt while the first one hangs, and one of another run once that was unlocked.
    for name, request, point in SUCCESSORS:
        world = worlds["successor", name] = recorded()
        script.append(world.step("replay", "replay.intent", request=BEFORE))
        if request is STAGED:
            script.append(world.step("unlock"))
        script.append(world.step("replay", point, request=request))
    world = worlds["approved"] = recorded()
    script.append(world.step("replay", request={**STAGED, "approve": True}))
    script.append(world.step("publish", "replay.approved", by="ann"))
    worlds["dead"] = recorded()
    script.append(worlds["dead"].step("replay", "replay.claim", request=STAGED))
    kill(script)
    return worlds


def require_stands(world, name: str, run: str) -> None:
    """Check that a run is done, has cleaned up, and the same request changes nothing any more."""
    contents.require_published_once(world.lake, run)
    assert children(f"{world.lake.root}/staging") == []
    target = world.lake.table(REQUESTS[name]["into"])
    version = delta.version_of(target)
    again = world.replay(REQUESTS[name])
    assert (again["run"], again["stood"]) == (run, True)
    assert delta.version_of(target) == version


@pytest.mark.parametrize(("name", "point"), kinds(REPLAYS))
def test_a_killed_replay_ends_in_the_same_target(killed, whole, name, point) -> None:
    world = killed[name, point]
    run = world.replay(REQUESTS[name])["run"]
    assert contents.table(world.lake, REQUESTS[name]["into"]) == whole[name]
    require_stands(world, name, run)


@pytest.mark.parametrize("point", ["replay.aside", "replay.publish"])
def test_rows_aside_of_a_killed_pipeline_are_those_of_the_attempt_that_counts(
    killed, whole, point
) -> None:
    world = killed["piped", point]
    # The same again, or if it was not done yet, for the first time.
    certificate = world.replay(REQUESTS["piped"])["certificate"]
    (said,) = certificate["pipeline"]["put_aside"]
    own = [("run", "=", certificate["run"]), ("attempt", "=", certificate["attempt"])]
    aside = delta.open_table(world.lake.aside("places")).to_pyarrow_table(filters=own)
    assert aside.num_rows == said["rows"] > 0
    metrics = delta.open_table(world.lake.ledger("metrics")).to_pyarrow_table(filters=own)
    assert sorted(set(metrics["node"].to_pylist())) == ["by_hour", "hours", "odd", "rows"]


@pytest.mark.parametrize("point", kinds(PUBLISHES, "publish"))
def test_a_killed_publish_of_a_held_run_publishes_once(killed, whole, point) -> None:
    world = killed["publish", point]
    run = world.act("publish")["run"]
    assert contents.table(world.lake, "staged") == whole["over"]
    version = delta.version_of(world.lake.table("staged"))
    assert world.act("publish")["stood"]
    assert delta.version_of(world.lake.table("staged")) == version
    require_stands(world, "staged", run)


def test_a_publish_killed_once_it_was_approved_goes_on_as_approved(killed, whole) -> None:
    world = killed["approved"]
    [waits] = claims.alive(world.lake)
    assert contents.rows(world.lake.table("staged")) == []
    # It was approved by one person, for good, and goes on whoever has it done again.
    done = world.act("publish")
    assert done["run"] == waits.run
    assert done["certificate"]["approval"]["by"] == "ann"
    assert contents.rows(world.lake.table("staged")) == whole["staged"]["rows"]
    contents.require_published_once(world.lake, done["run"])
    steps = [row.step for row in runs.read_history(world.lake, done["run"]).rows]
    assert steps == ["intent", "audited", "approved", "done"]
    again = world.act("publish", by="bob")
    assert (again["run"], again["stood"]) == (done["run"], True)
    assert children(f"{world.lake.root}/staging") == []


@pytest.mark.parametrize("point", ROLLBACKS)
def test_a_killed_rollback_takes_back_once(killed, whole, point) -> None:
    world = killed["rollback", point]
    run = list(runs.read_histories(world.lake))[-1]
    version = world.act("rollback", run=run)["version"]
    assert contents.table(world.lake, "staged") == whole["before"]
    assert delta.version_of(world.lake.table("staged")) == version
    assert world.act("rollback", run=run)["version"] == version
    assert delta.version_of(world.lake.table("staged")) == version
    assert claims.alive(world.lake) == []
    again = world.replay(STAGED)["run"]
    assert again != run
    assert contents.rows(world.lake.table("staged")) == whole["over"]["rows"]
    contents.require_published_once(world.lake, again)


@pytest.mark.parametrize(("name", "point"), kinds(ADDING, "rollback"))
def test_a_killed_rollback_of_added_rows_takes_back_once(killed, whole, name, point) -> None:
    world = killed["rollback", name, point]
    into = REQUESTS[name]["into"]
    run = list(runs.read_histories(world.lake))[-1]
    world.act("rollback", run=run)
    assert contents.table(world.lake, into) == {"rows": [], "standing": []}
    assert claims.alive(world.lake) == []
    again = world.replay(REQUESTS[name])["run"]
    assert contents.rows(world.lake.table(into)) == whole[name]["rows"]
    contents.require_published_once(world.lake, again)


@pytest.mark.parametrize("point", kinds(FAILING, "failing"))
def test_a_killed_run_whose_audit_fails_leaves_nothing(killed, point) -> None:
    world = killed["failing", point]
    with pytest.raises(AnswerIsNo, match="CAP-AUDIT"):
        world.replay({**WRONG, "direct": point != "audit.findings"})
    assert contents.table(world.lake, "wrong") == {"rows": [], "standing": []}
    found = delta.open_table(world.lake.ledger("findings")).to_pyarrow_table()
    assert set(found["code"].to_pylist()) <= {"CAP-MISSING", "CAP-EXTRA", "CAP-CHANGED"}
    assert found.num_rows > 0
    assert claims.alive(world.lake) == []


def test_a_run_that_was_killed_once_it_waits_is_published(killed, whole) -> None:
    world = killed["audited"]
    run = world.act("publish")["run"]
    assert contents.table(world.lake, "staged") == whole["staged"]
    require_stands(world, "staged", run)


def test_a_rejection_that_was_killed_stands(killed, whole) -> None:
    world = killed["waiting", "rejected"]
    assert world.act("reject", by="bob")["step"] == "rejected"
    run, history = next(iter(runs.read_histories(world.lake).items()))
    assert [row.step for row in history.rows] == ["intent", "audited", "rejected"]
    assert history.last.detail["by"] == "ann"
    assert contents.rows(world.lake.table("staged")) == []
    assert children(f"{world.lake.root}/staging") == [f"{run}-1"]
    assert claims.alive(world.lake) == []
    # Asked for again, it is a new attempt of the same run.
    assert world.replay(STAGED)["run"] == run
    assert contents.table(world.lake, "staged") == whole["staged"]
    require_stands(world, "staged", run)


def test_a_publish_that_was_killed_with_its_new_claim_publishes_once(killed, whole) -> None:
    world = killed["waiting", "unlocked"]
    run = world.act("publish")["run"]
    assert contents.table(world.lake, "staged") == whole["staged"]
    require_stands(world, "staged", run)


@pytest.mark.parametrize(("name", "request_"), [each[:2] for each in SUCCESSORS])
def test_who_was_killed_while_it_shut_others_out_goes_on(killed, whole, name, request_) -> None:
    world = killed["successor", name]
    run = world.replay(request_)["run"]
    wanted = "before" if request_ is BEFORE else "staged"
    assert contents.table(world.lake, "staged") == whole[wanted]
    contents.require_published_once(world.lake, run)
    assert children(f"{world.lake.root}/staging") == []


def test_a_dead_run_holds_its_range_until_it_is_unlocked(killed, whole) -> None:
    world = killed["dead"]
    narrower = {**STAGED, "workers": ["west"]}
    with pytest.raises(Held) as refused:
        world.replay(narrower)
    dead = refused.value.fields["holder"]
    assert unlock(world.spark, world.lake, dead) == 1
    contents.require_published_once(world.lake, world.replay(narrower)["run"])
    assert world.replay(STAGED)["run"] == dead
    assert contents.rows(world.lake.table("staged")) == whole["staged"]["rows"]
