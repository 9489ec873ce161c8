"""What a soak says has grown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.bench.soak import COUNTED, MOST, Stage, grown, in_turns, main

STAGE = Stage(15, 10.0, 12, 15, 20, 100, 5000.0, {})


def test_what_rises_now_and_then_has_not_grown() -> None:
    counts = (6, 5, 5, 5, 5, 11)
    assert grown([replace(STAGE, follow_jobs=count, capture_jobs=count) for count in counts]) == []


def test_each_count_is_judged() -> None:
    for name in COUNTED:
        more = replace(STAGE, **{name: 1.31 * getattr(STAGE, name)})
        (line,) = grown([STAGE, STAGE, more, more])
        assert line.startswith(f"{name}: ")
        assert grown([STAGE, more, STAGE, more]) == []


def test_files_may_rise_up_to_a_bound() -> None:
    for name, most in MOST.items():
        there, many = replace(STAGE, **{name: most}), replace(STAGE, **{name: most + 1})
        assert grown([STAGE, STAGE, STAGE, there]) == []
        assert grown([many, STAGE, STAGE, STAGE]) == [f"{name}: {most + 1}, of at most {most}"]


def test_a_young_tape_and_an_old_one_are_measured_in_turns() -> None:
    reported: list[str] = []

    def growing(name: str, *costs: float):
        left = iter(costs)

        def grow() -> Stage:
            reported.append(name)
            return replace(STAGE, cpu={"capture": (cost := next(left)), "list": 10 * cost})

        return grow

    actual = in_turns(growing("young", 1.0, 9.0, 2.0), growing("old", 4.0, 3.0, 0.0))
    assert actual == {"capture": (2.0, 3.0), "list": (20.0, 30.0)}
    assert reported == ["young", "old"] * 3


def test_a_soak_begins_in_a_folder_of_its_own(tmp_path, capsys) -> None:
    (tmp_path / "source").mkdir()
    with pytest.raises(SystemExit) as ended:
        main(["--folder", str(tmp_path)])
    assert ended.value.code == 2
    assert "delete it, or name another" in capsys.readouterr().err
