"""What long work says while it goes on, without a terminal: a line per step that is done."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from capstan.cli import progress
from capstan.cli.output import CommandOutput
from capstan.cli.progress import Work, replay_work, watching
from capstan.telemetry.instrumentation import emit

ROOM = Path(progress.__file__).parents[1]


@pytest.mark.parametrize(("failed", "ended"), [(False, "is done"), (True, "failed")])
def test_each_run_of_a_backfill_is_shown(failed: bool, ended: str, capsys) -> None:
    with watching(CommandOutput.of(as_json=False), Work("backfill r", ("backfill.run",) * 3)):
        emit("backfill.run", replay="r", number=2, of=3, failed=failed)
        emit("too.small", number=1)
    assert capsys.readouterr().err == f"backfill r: run 2 of 3 {ended}\n"
    with watching(CommandOutput.of(as_json=True), Work("backfill r")):
        emit("backfill.run", replay="r", number=2, of=3, failed=failed)
    assert capsys.readouterr() == ("", "")


def test_every_package_with_points_shows_progress() -> None:
    """Each room that passes named points tells of one at least."""
    sources = "\n".join(path.read_text(encoding="utf-8") for path in ROOM.rglob("*.py"))
    points = set(re.findall(r'\bemit\(\s*"([a-z.-]+)"', sources))
    # Late and repaired records come back by the same steps.
    steps = re.findall(r'\bemit\(\s*f"\{entry\.origin\}\.([a-z]+)"', sources)
    points |= {f"{origin}.{step}" for origin in ("put-back", "fix") for step in steps}
    assert len(points) > 60
    reported = {point for point in points if point in progress._DONE or point == "capture.events"}
    silent = {point.partition(".")[0] for point in points - reported} - {
        point.partition(".")[0] for point in reported
    }
    assert silent <= {"publish"}  # Its work goes on with points of a replay.
    assert set(progress._DONE) | set(progress._NEXT) <= points | {"backfill.run", "listen.events"}


def test_a_terminal_has_a_progress_line_with_a_total(monkeypatch: pytest.MonkeyPatch) -> None:
    out = CommandOutput.of(as_json=False)
    notes = Console(file=io.StringIO(), force_terminal=True, width=120)
    work = replay_work("replay r")
    with watching(replace(out, notes=notes), work) as watch:
        emit("replay.verify", workers=2)
        emit("replay.claim", run="r-1", attempt=1)
        (task,) = watch.bar.tasks
        assert (task.completed, task.total) == (2, 8)
        assert task.description == "replay r: reading the tape"
        for point in work.points[2:]:
            emit(point, cells=3, records=4, version=5)
        assert task.completed == task.total
