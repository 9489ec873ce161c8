"""Tasks that are killed in the middle: their Spark job is gone, and done again it is as if not."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, date, datetime, time
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import psutil
import pyarrow.compute as pc
import pytest
from pyarrow.dataset import dataset

from capstan.demo.flights import feed
from capstan.storage.delta.arrow_scan import rows_of
from tests.support import lake_contents
from tests.support.airflow_api import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from conftest import Cut, World

REPLAY = "capstan_replay"
CAPTURE = "capstan_capture__flights"
AUDIT, MAINTAIN = "capstan_audit", "capstan_maintain"


def commits(place: str) -> int:
    return len(list(Path(place).glob("_delta_log/*.json")))


@pytest.mark.rest
@pytest.mark.slow
def test_a_replay_whose_job_was_killed_is_tried_again_by_itself(
    captured: World, cut: Cut, whole: dict[str, object]
) -> None:
    assert cut.last_line.startswith("CAP-SUBMIT: ")
    assert cut.rows == []
    assert captured.rest.task(REPLAY, cut.run, "replay")["try_number"] == 2
    assert (whole["published"], whole["attempt"]) == (True, 2)
    lake_contents.require_published_once(captured.lake, str(whole["run"]))
    actual = rows_of(captured.lake.table("whole")).to_table().to_pylist()
    reported = [
        (row["origin"], row["day"], row["departures"], row["cancelled"], row["delay_minutes"],
         row["mean_delay_minutes"])
        for row in actual
    ]  # fmt: skip
    assert sorted(reported) == by_day(captured, date(2013, 1, 1), date(2013, 1, 4))


def by_day(world: World, since: date, until: date) -> list[tuple[object, ...]]:
    """What the transform says of days, reckoned from the source without Spark."""
    begin, end = (datetime.combine(day, time(), UTC) for day in (since, until))
    source = dataset(Path(world.lake.root) / "sources" / "flights").to_table().to_pylist()
    groups: dict[tuple[str, datetime], list[dict[str, Any]]] = {}
    for flight in source:
        moment = flight["sched_dep"]
        if begin <= moment < end:
            day = datetime.combine(moment.date(), time(), UTC)
            groups.setdefault((flight["origin"], day), []).append(flight)
    actual: list[tuple[object, ...]] = []
    for (origin, day), flights in groups.items():
        delays = [item["dep_delay"] for item in flights if item["dep_delay"] is not None]
        mean = Decimal(repr(sum(delays) / len(delays))).quantize(Decimal("0.01"), ROUND_HALF_UP)
        left = sum(item["cancelled"] for item in flights)
        actual.append((origin, day, len(flights) - left, left, sum(delays), float(mean)))
    return sorted(actual)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_a_replay_killed_once_it_is_published_is_published_once(
    captured: World, whole: dict[str, object]
) -> None:
    requested = {key: whole[key] for key in ("transform", "since", "until")}
    run = captured.rest.trigger(REPLAY, {**requested, "into": "killed"})
    # The first commit makes the table, the second publishes.
    with captured.launched.frozen(lambda: commits(captured.lake.table("killed")) > 1):
        captured.rest.fail_task(REPLAY, run, "replay")
    assert captured.rest.wait(REPLAY, run) == "failed"
    assert captured.rows("killed") != []
    captured.rest.clear(REPLAY, run, ["replay"])
    captured.rest.require(REPLAY, run)

    certificate = captured.rest.xcom(REPLAY, run, "replay")
    assert isinstance(certificate, dict)
    # The first attempt has published, and the second has found that, and said so.
    assert (certificate["published"], certificate["attempt"]) == (True, 1)
    assert captured.rows("killed") == captured.rows("whole") != []
    lake_contents.require_published_once(captured.lake, str(certificate["run"]))
    assert not list(Path(captured.lake.staging("")).glob("killed-*"))


@pytest.mark.nightly
@pytest.mark.timeout(2400)
def test_each_other_job_is_killed_in_the_middle_and_done_again(
    captured: World, whole: dict[str, object]
) -> None:
    requested = {key: whole[key] for key in ("transform", "since", "until")}
    waits = captured.rest.trigger(REPLAY, {**requested, "into": "steps", "approve": True})
    name = str(captured.waiting(waits)["run"])
    published = grown(captured.lake.table("steps"))
    captured.approve(waits)
    killed(captured, REPLAY, waits, "publish", published)
    assert captured.rows("steps") == captured.rows("whole") != []
    lake_contents.require_published_once(captured.lake, name)

    audited(captured, {name, str(whole["run"])})
    maintained(captured)
    assert captured.rows("steps") == captured.rows("whole") != []
    assert captured.replay(**requested, into="whole")["unchanged"]

    taken = grown(captured.lake.table("steps"))
    back = captured.rest.trigger("capstan_rollback", {"run": name})
    killed(captured, "capstan_rollback", back, "rollback", taken)
    assert captured.rows("steps") == []


def audited(world: World, runs: set[str]) -> None:
    """What was published is audited again, these runs among others: by the audit of this day."""
    before = world.versions()
    run = of_this_day(world, AUDIT)
    killed(world, AUDIT, run, "audit", lambda: worked(world))
    actual = world.rest.xcom(AUDIT, run, "audit")
    assert isinstance(actual, dict)
    assert runs <= {item["run"] for item in actual["audits"]}
    assert all(item["passed"] and item["cells"] > 0 for item in actual["audits"])
    assert (actual["passed"], actual["not_audited"]) == (True, [])
    assert world.versions() == before


def maintained(world: World) -> None:
    """What is on tape and published is maintained, as it is each day."""
    verified = grown(world.lake.ledger("verified"))
    run = of_this_day(world, MAINTAIN)
    killed(world, MAINTAIN, run, "maintain", verified)
    actual = world.rest.xcom(MAINTAIN, run, "maintain")
    assert isinstance(actual, dict)
    assert actual["streams"] == ["flights"]
    assert {"records", "events"} <= {table["table"] for table in actual["tables"]}


def of_this_day(world: World, dag: str) -> str:
    """The run of this day, which the scheduler begins as soon as its DAG is unpaused."""
    world.rest.wait_for_dag(dag)
    world.rest.unpause(dag)
    run = until(lambda: next(iter(world.rest.runs(dag)), None), 240)
    assert run["run_type"] == "scheduled"
    return str(run["dag_run_id"])


def killed(world: World, dag: str, run: str, task: str, when: Callable[[], bool]) -> None:
    """Kill a task while its Spark job works, see that nothing is left of that, and do it again."""
    with world.launched.frozen(when):
        world.rest.fail_task(dag, run, task)
    assert world.rest.wait(dag, run) == "failed"
    world.rest.clear(dag, run, [task])
    world.rest.require(dag, run)


def grown(place: str) -> Callable[[], bool]:
    """What tells whether a table has more commits than now."""
    before = commits(place)
    return lambda: commits(place) > before


def worked(world: World) -> bool:
    """Whether a job that writes nothing has done more than to start, by its processor time."""
    return any(seconds(item.pid) > 4 for item in world.launched.spark())


def seconds(process: int) -> float:
    """Seconds of processor time that a process has used; 0 where it has ended."""
    try:
        return sum(psutil.Process(process).cpu_times()[:2])
    except psutil.NoSuchProcess:
        return 0.0


@pytest.mark.nightly
@pytest.mark.slow
def test_a_capture_cleared_between_its_commits(captured: World) -> None:
    tape = captured.lake.stream("flights")
    source = Path(captured.lake.root) / "sources" / "flights"
    before, days = commits(tape.records), len(list(source.glob("*.parquet")))
    feed(source, days=range(days + 2))
    run = captured.rest.trigger(CAPTURE)
    with captured.launched.frozen(lambda: commits(tape.records) > before):
        # A task that runs is killed by this, and begun again.
        captured.rest.clear(CAPTURE, run, ["capture"])
    captured.rest.require(CAPTURE, run)
    assert int(str(captured.rest.task(CAPTURE, run, "capture")["try_number"])) > 1

    # Every flight that was fed is on tape or among the late ones, once.
    fed = Counter(flights(dataset(source).to_table()))
    kept = [deltalake.DeltaTable(place).to_pyarrow_table() for place in (tape.records, tape.late)]
    assert Counter(row for item in kept for row in flights(item, "data")) == fed
    events = deltalake.DeltaTable(tape.events).to_pyarrow_table()
    assert pc.sum(events["records"]).as_py() == kept[0].num_rows > 5000


def flights(table: pa.Table, column: str | None = None) -> Iterator[tuple[object, ...]]:
    """The flights of a table, or of a struct in it: their values by the names of their columns."""
    rows = table.to_pylist() if column is None else table[column].to_pylist()
    return (tuple(value for _, value in sorted(row.items())) for row in rows)
