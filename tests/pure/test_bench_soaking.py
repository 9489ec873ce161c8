"""What a soak says has grown."""

from __future__ import annotations

from dataclasses import replace

from capstan.bench.soaking import COUNTED, Stage, grown

STAGE = Stage(15, 10.0, 4, 8, 12, 15, 20, 100, 5000.0, {})


def test_what_rises_and_falls_has_not_grown() -> None:
    saw = [replace(STAGE, files=files, list_files=files) for files in (10, 64, 30, 64, 12, 78)]
    assert grown(saw) == []


def test_each_count_is_judged() -> None:
    for name in COUNTED:
        more = replace(STAGE, **{name: 1.31 * getattr(STAGE, name)})
        (line,) = grown([STAGE, STAGE, STAGE, more])
        assert line.startswith(f"{name}: ")
        assert grown([STAGE, more, STAGE, more]) == []
