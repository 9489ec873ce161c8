"""The benchmark's own arithmetic: slopes, goals, the tree of processes, Spark's metric texts."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capstan.core.config import load_config
from capstan.errors import InvalidRequestError
from tests.bench import backfill
from tests.bench.__main__ import main, parse
from tests.bench.counters import commits, count_in, size_in
from tests.bench.cpu_clock import Clock, Cost, _Process, descendants
from tests.bench.measures import Line, Sample, compared, interleave, rate

costs = st.builds(Cost, *[st.floats(0.01, 1e4)] * 3)


@given(a=costs, b=costs)
def test_costs_add_up_and_come_apart(a: Cost, b: Cost) -> None:
    back = a + b - b
    assert back.cpu == pytest.approx(a.cpu, abs=1e-6)
    assert back.wall == pytest.approx(a.wall, abs=1e-6)
    assert a.times(2).cpu == pytest.approx((a + a).cpu)


@given(
    fixed=st.tuples(st.floats(0, 100), st.floats(0, 100)),
    per_row=st.tuples(st.floats(0.01, 10), st.floats(0.01, 10)),
    rounds=st.integers(1, 4),
)
def test_a_slope_leaves_out_what_a_run_costs_anyway(
    fixed: tuple[float, float], per_row: tuple[float, float], rounds: int
) -> None:
    def side(index: int) -> object:
        return lambda rows, _: Cost(jvm=fixed[index] + rows * per_row[index], wall=1.0)

    samples = interleave({"a": side(0), "b": side(1)}, (10, 30), rounds, lambda _: None)  # type: ignore[dict-item]
    assert len(samples) == 4 * rounds
    line = compared(samples, "a", "b", goal=1.0)
    assert line.value == pytest.approx(per_row[0] / per_row[1], rel=1e-6)
    assert line.total == pytest.approx(
        (fixed[0] + 30 * per_row[0]) / (fixed[1] + 30 * per_row[1]), rel=1e-6
    )
    assert len(line.rounds) == rounds


def test_sides_take_turns_and_the_rehearsal_does_not_count() -> None:
    reported: list[Sample] = []
    sides = {"a": lambda *_: Cost(1), "b": lambda *_: Cost(2)}
    samples = interleave(sides, (1, 2), 2, reported.append)
    assert [(s.round, s.rows, s.side) for s in reported[:2]] == [(0, 1, "a"), (0, 1, "b")]
    assert reported[2:] == samples
    assert [s.side for s in samples] == ["a", "b"] * 4
    assert [s.rows for s in samples] == [1, 1, 2, 2] * 2


def test_a_side_that_costs_nothing_more_gives_no_ratio() -> None:
    samples = [Sample(side, rows, 1, Cost(jvm=1)) for side in ("a", "b") for rows in (1, 2)]
    line = compared(samples, "a", "b", goal=1.0)
    assert line.value is None
    assert line.met is None


@pytest.mark.parametrize(
    ("value", "goal", "met"),
    [(1.0, 1.0, True), (1.1, 1.0, False), (None, 1.0, None), (1, None, None)],
)
def test_a_goal_is_met_at_most(value: float | None, goal: float | None, met: bool | None) -> None:
    line = Line("a", "b", value, goal)
    assert line.met is met
    assert line.to_json()["met"] is met


@pytest.mark.parametrize(("goal", "met"), [(None, None), (50.0, True), (51.0, False)])
def test_a_rate_is_met_at_least(goal: float | None, met: bool | None) -> None:
    line = rate("a", "rows/s", 100, [Cost(jvm=1.0, python=1.0)], goal=goal)
    assert (line.value, line.met) == (50.0, met)


def test_processes_of_processes_are_counted() -> None:
    tree = {1: _Process(0, 0), 2: _Process(1, 0), 3: _Process(2, 0), 4: _Process(9, 0)}
    assert sorted(descendants(tree, 1)) == [2, 3]
    assert descendants(tree, 4) == []


def test_a_worker_that_has_ended_counts_on() -> None:
    clock = Clock(1)
    daemon, worker = _Process(1, 0.5), _Process(2, 30.0, started=7)
    before = clock._of_workers({1: _Process(0, 9.0), 2: daemon, 3: worker})
    another = _Process(2, 1.0, started=8)
    after = clock._of_workers({1: _Process(0, 9.0), 2: daemon, 3: another})
    assert (before, after) == (30.5, 31.5)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("", 0),
        ("45.3 KiB", 46387),
        ("1,023.0 B", 1023),
        ("total (min, med, max)\n1.5 MiB (1.0 KiB, 2.0 KiB, 9.0 KiB)", 1572864),
    ],
)
def test_sizes_are_read_from_metrics(text: str, size: int) -> None:
    assert size_in(text) == size


@given(st.integers(0, 10**12))
def test_counts_are_read_from_metrics(count: int) -> None:
    assert count_in(f"{count:,}") == count
    assert count_in("") == 0


def test_linked_tapes_do_not_count_as_commits(tmp_path: Path) -> None:
    for name in (
        "lake/a/_delta_log/0.json",
        "lake/a/_delta_log/0.crc",
        "tapes/b/_delta_log/0.json",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "lake/streams").symlink_to(tmp_path / "tapes")
    assert [path.name for path in commits(tmp_path / "lake")] == ["0.json"]


def test_options_are_read() -> None:
    options, output, folder = parse(
        [
            "--rows",
            "10,30",
            "--rounds=2",
            "--only",
            "follow",
            "--longer",
            "100",
            "--output",
            "x.json",
        ]
    )
    assert options.sizes == (10, 30)
    assert (options.rounds, options.longer, options.only) == (2, 100, frozenset({"follow"}))
    assert (output, folder) == (Path("x.json"), None)
    assert parse([])[0].sizes == (1_000_000, 3_000_000)
    assert parse([])[1].match("bench-20??-??-??.json")


@pytest.mark.parametrize(
    "asked", ["--rows=3,1", "--rows=3", "--rows=a,b", "--rows=0,1", "--rounds=0", "--longer=1"]
)
def test_what_tells_nothing_is_refused(asked: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InvalidRequestError, match="CAP-BENCH"):
        parse([asked])
    assert main([asked]) == 2
    assert "CAP-BENCH" in capsys.readouterr().err


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="already exists"):
        parse(["--workdir", str(tmp_path)])


def test_what_the_jobs_of_a_backfill_are_told_can_be_read(tmp_path: Path) -> None:
    since, until = backfill._bounds(30)
    path = backfill._declared(tmp_path, since, until)
    declared = load_config(path, lake="/lake").replay("hours")
    assert (declared.since, declared.until) == (since, until)
    assert (until - since).total_seconds() == 30 * 3600
