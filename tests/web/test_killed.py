"""Tasks that are killed in the middle: their Spark app is gone, and done again it is as if not."""

from __future__ import annotations

import contextlib
import signal
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import deltalake
import psutil
import pyarrow.compute as pc
import pytest
from pyarrow.dataset import dataset

from capstan.launcher.processes import send
from capstan.testing import contents
from capstan.testing.rest import until
from capstan.workloads.flights import feed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from conftest import World

REPLAY = "capstan_replay"
CAPTURE = "capstan_capture__flights"


@contextlib.contextmanager
def frozen(world: World, when: Callable[[], bool]) -> Iterator[None]:
    """Stand still all Spark processes at the moment `when` says so: they cannot reach their end."""
    until(lambda: when() or None, 600, every=0.02)
    apps = world.launched.spark()
    for app in apps:
        send(app, signal.SIGSTOP)
    assert apps, "the app was too fast"
    yield
    until(lambda: world.launched.spark() == [] or None, 240)


def commits(place: str) -> int:
    return len(list(Path(place).glob("_delta_log/*.json")))


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_a_replay_killed_again_and_again_is_published_once(
    captured: World, whole: dict[str, object]
) -> None:
    asked = {key: whole[key] for key in ("transform", "since", "until")}
    run = captured.rest.trigger(REPLAY, {**asked, "into": "killed"})

    def staged() -> bool:
        return any(Path(captured.lake.staging("")).glob("killed-*/**/*.parquet"))

    # The first commit makes the table, the second shuts out the first attempt, the third publishes.
    moments = {"staged": staged, "published": lambda: commits(captured.lake.table("killed")) > 2}
    for moment, there in moments.items():
        with frozen(captured, there):
            captured.rest.fail_task(REPLAY, run, "replay")
        assert captured.rest.wait(REPLAY, run) == "failed"
        assert (captured.rows("killed") == []) is (moment == "staged")
        captured.rest.clear(REPLAY, run, ["replay"])
    captured.rest.require(REPLAY, run)

    certificate = captured.rest.xcom(REPLAY, run, "replay")
    assert isinstance(certificate, dict)
    # The second attempt has published, and the third has found that, and said so.
    assert (certificate["published"], certificate["attempt"]) == (True, 2)
    assert captured.rows("killed") == captured.rows("whole") != []
    contents.require_published_once(captured.lake, str(certificate["run"]))
    assert not staged()


@pytest.mark.nightly
@pytest.mark.timeout(2400)
def test_a_replay_whose_app_was_killed_is_tried_again_by_itself(
    captured: World, whole: dict[str, object]
) -> None:
    asked = {key: whole[key] for key in ("transform", "since", "until")}
    run = captured.rest.trigger(REPLAY, {**asked, "into": "tried"})

    def staged() -> bool:
        return any(Path(captured.lake.staging("")).glob("tried-*/**/*.parquet"))

    def waits() -> bool | None:
        return captured.rest.task(REPLAY, run, "replay")["state"] == "up_for_retry" or None

    with frozen(captured, staged):
        for app in captured.launched.spark():
            send(app, signal.SIGKILL)
        until(waits, 240, every=0.1)
    assert captured.last_line(REPLAY, run, "replay", 1).startswith("CAP-SUBMIT: ")
    assert captured.rows("tried") == []
    captured.rest.require(REPLAY, run)

    assert captured.rest.task(REPLAY, run, "replay")["try_number"] == 2
    certificate = captured.rest.xcom(REPLAY, run, "replay")
    assert isinstance(certificate, dict)
    assert (certificate["published"], certificate["attempt"]) == (True, 2)
    assert captured.rows("tried") == captured.rows("whole") != []
    contents.require_published_once(captured.lake, str(certificate["run"]))


@pytest.mark.nightly
@pytest.mark.timeout(2400)
def test_each_other_app_is_killed_in_the_middle_and_done_again(
    captured: World, whole: dict[str, object]
) -> None:
    asked = {key: whole[key] for key in ("transform", "since", "until")}
    waits = captured.rest.trigger(REPLAY, {**asked, "into": "steps", "approve": True})
    name = str(captured.waiting(waits)["run"])
    published = grown(captured.lake.table("steps"))
    captured.approve(waits)
    killed(captured, REPLAY, waits, "publish", published)
    assert captured.rows("steps") == captured.rows("whole") != []
    contents.require_published_once(captured.lake, name)

    audit, maintain = "capstan_audit", "capstan_maintain"
    for dag in (audit, maintain):
        begin_daily(captured, dag)
    audits = captured.rest.trigger(audit, {"target": "steps"})
    killed(captured, audit, audits, "audit", lambda: worked(captured))
    found = captured.rest.xcom(audit, audits, "audit")
    assert isinstance(found, dict)
    assert (found["passed"], [each["run"] for each in found["audits"]]) == (True, [name])

    captured.capture_more(1)
    verified = grown(captured.lake.ledger("verified"))
    maintained = captured.rest.trigger(maintain, {"streams": ["flights"]})
    killed(captured, maintain, maintained, "maintain", verified)
    assert captured.rows("steps") == captured.rows("whole")

    taken = grown(captured.lake.table("steps"))
    back = captured.rest.trigger("capstan_rollback", {"run": name})
    killed(captured, "capstan_rollback", back, "rollback", taken)
    assert captured.rows("steps") == []


def begin_daily(world: World, dag: str) -> None:
    """Unpause a DAG, and wait until its run of this day is over: nothing else shall be at work."""
    world.rest.wait_for_dag(dag)
    world.rest.unpause(dag)

    def rests() -> bool | None:
        states = {str(run["state"]) for run in world.rest.runs(dag)}
        return (states and states <= {"success", "failed"}) or None

    until(rests, 600)


def killed(world: World, dag: str, run: str, task: str, when: Callable[[], bool]) -> None:
    """Kill a task while its Spark app works, see that nothing is left of that, and do it again."""
    with frozen(world, when):
        world.rest.fail_task(dag, run, task)
    assert world.rest.wait(dag, run) == "failed"
    world.rest.clear(dag, run, [task])
    world.rest.require(dag, run)


def grown(place: str) -> Callable[[], bool]:
    """What tells whether a table has more commits than now."""
    before = commits(place)
    return lambda: commits(place) > before


def worked(world: World) -> bool:
    """Whether an app that writes nothing has done more than to start, by its processor time."""
    return any(seconds(each.pid) > 4 for each in world.launched.spark())


def seconds(process: int) -> float:
    """Seconds of processor time that a process has used; 0 where it has ended."""
    try:
        return sum(psutil.Process(process).cpu_times()[:2])
    except psutil.NoSuchProcess:
        return 0.0


@pytest.mark.slow
def test_a_capture_cleared_between_its_commits(captured: World) -> None:
    tape = captured.lake.stream("flights")
    source = Path(captured.lake.root) / "sources" / "flights"
    before, days = commits(tape.records), len(list(source.glob("*.parquet")))
    feed(source, days=range(days + 2))
    run = captured.rest.trigger(CAPTURE)
    with frozen(captured, lambda: commits(tape.records) > before):
        # A task that runs is killed by this, and begun again.
        captured.rest.clear(CAPTURE, run, ["capture"])
    captured.rest.require(CAPTURE, run)
    assert int(str(captured.rest.task(CAPTURE, run, "capture")["try_number"])) > 1

    # Every flight that was fed is on tape or among the late ones, once.
    fed = Counter(flights(dataset(source).to_table()))
    kept = [deltalake.DeltaTable(place).to_pyarrow_table() for place in (tape.records, tape.late)]
    assert Counter(row for each in kept for row in flights(each, "data")) == fed
    events = deltalake.DeltaTable(tape.events).to_pyarrow_table()
    assert pc.sum(events["records"]).as_py() == kept[0].num_rows > 5000


def flights(table: pa.Table, column: str | None = None) -> Iterator[tuple[object, ...]]:
    """The flights of a table, or of a struct in it: their values by the names of their columns."""
    rows = table.to_pylist() if column is None else table[column].to_pylist()
    return (tuple(value for _, value in sorted(row.items())) for row in rows)
