"""Tasks that are killed in the middle: their Spark app is gone, and done again it is as if not."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from capstan.launcher.processes import send
from capstan.tape.lake import Lake
from capstan.testing import contents
from capstan.testing.rest import Refused, until
from capstan.workloads.flights import feed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import World

REPLAY = "capstan_replay"
CAPTURE = "capstan_capture__flights"
STREAMS = Path(__file__).parents[2] / "dags" / "streams.yaml"


@contextlib.contextmanager
def frozen(world: World, when: Callable[[], bool]) -> Iterator[None]:
    """Stand still all Spark processes at the moment `when` says so: they cannot reach their end."""
    until(lambda: when() or None, 240, every=0.02)
    apps = world.launched.spark()
    for app in apps:
        send(app, signal.SIGSTOP)
    assert apps, "the app was too fast"
    yield
    until(lambda: world.launched.spark() == [] or None, 60)


def has_files(place: str) -> bool:
    return any(path.suffix == ".parquet" for path in Path(place).rglob("*"))


def commits(place: str) -> int:
    return len(list(Path(place).glob("_delta_log/*.json")))


# When a replay is killed: what is there at that moment, by the step that it is in the midst of.
MOMENTS: dict[str, Callable[[World, str, int], bool]] = {
    "claimed": lambda world, _, claims: commits(world.lake.ledger("claims")) > claims,
    "staged": lambda world, _, __: has_files(f"{world.lake.root}/staging"),
    # The first commit makes the table, the second one publishes.
    "published": lambda world, into, _: commits(world.lake.table(into)) > 1,
}


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_replay_killed_in_its_midst(
    captured: World, whole: dict[str, object], moment: str
) -> None:
    asked = {key: whole[key] for key in ("transform", "since", "until")}
    into, claims = f"killed_{moment}", commits(captured.lake.ledger("claims"))
    run = captured.rest.trigger(REPLAY, {**asked, "into": into})
    with frozen(captured, lambda: MOMENTS[moment](captured, into, claims)):
        captured.rest.fail_task(REPLAY, run, "replay")
    assert captured.rest.wait(REPLAY, run) == "failed"
    assert (captured.rows(into) == []) is (moment != "published")

    captured.rest.clear(REPLAY, run, ["replay"])
    captured.rest.require(REPLAY, run)
    certificate = captured.rest.xcom(REPLAY, run, "replay")
    assert isinstance(certificate, dict)
    assert certificate["published"]
    if moment != "published":
        assert certificate["attempt"] == 2
    assert captured.rows(into) == captured.rows("whole") != []
    contents.require_published_once(captured.lake, str(certificate["run"]))
    assert not has_files(f"{captured.lake.root}/staging")


@pytest.mark.slow
def test_a_run_that_is_cleared_from_its_first_task_changes_nothing(
    captured: World, whole: dict[str, object]
) -> None:
    runs = [str(each["dag_run_id"]) for each in captured.rest.runs(REPLAY)]
    done = [run for run in runs if captured.rest.state(REPLAY, run) == "success"]
    run = next(r for r in done if told(captured, r).get("run") == whole["run"])
    before = captured.versions()
    captured.rest.clear(REPLAY, run, ["plan"])
    captured.rest.require(REPLAY, run)
    again = told(captured, run)
    assert (again["run"], again["stood"]) == (whole["run"], True)
    assert captured.versions() == before


def told(world: World, run: str) -> dict[str, object]:
    """The certificate that a run has left, if it has."""
    try:
        found = world.rest.xcom(REPLAY, run, "replay")
    except Refused:
        return {}
    return found if isinstance(found, dict) else {}


@pytest.mark.slow
def test_a_capture_cleared_between_its_commits(captured: World, tmp_path: Path) -> None:
    records = Path(captured.lake.stream("flights").records)
    source = Path(captured.lake.root) / "sources" / "flights"
    days = len(list(source.glob("*.parquet")))
    before = len(list(records.glob("_delta_log/*.json")))
    feed(source, days=range(days + 2))
    run = captured.rest.trigger(CAPTURE)
    with frozen(captured, lambda: len(list(records.glob("_delta_log/*.json"))) > before):
        # A task that runs is killed by this, and begun again.
        captured.rest.clear(CAPTURE, run, ["capture"])
    captured.rest.require(CAPTURE, run)
    assert int(str(captured.rest.task(CAPTURE, run, "capture")["try_number"])) > 1

    undisturbed = Lake.at(tmp_path / "lake")
    for until_day in (days, days + 2):
        feed(Path(undisturbed.root) / "sources" / "flights", days=range(until_day))
        capture(undisturbed)
    assert contents.tape(captured.lake, "flights") == contents.tape(undisturbed, "flights")


def capture(lake: Lake) -> None:
    """Capture what has arrived, from a shell."""
    shell = Path(sys.executable).with_name("capstan")
    given = ["capture", "flights", "--lake", lake.root, "--streams", str(STREAMS)]
    subprocess.run([shell, *given], check=True, timeout=300)
