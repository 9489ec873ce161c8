"""`--timely` of commands that exchange recordings, as far as it is judged before a JVM starts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from capstan.cli import main
from capstan.core.times import Kind, TimeType
from capstan.storage.lake import Lake
from tests.support.jvmless_lake import lay_tape

CONFORMANCE = Path(__file__).parents[3] / "conformance"


def refused(capsys, *words):
    code = main([*map(str, words)])
    out, err = capsys.readouterr()
    assert out == ""
    return code, err


def test_topics_have_the_form_of_a_known_release(capsys, tmp_path):
    words = ("--lake", tmp_path, "import", "x", "kafka://localhost:9/p", "--timely", "0.33")
    code, err = refused(capsys, *words)
    assert (code, "CAP-TIMELY" in err, "0.31 or 0.32" in err) == (2, True, True)


@pytest.mark.parametrize("release", ["0.33", "0.310", "31", ""])
def test_a_release_must_be_known(release, capsys, tmp_path):
    folder = CONFORMANCE / "timely032" / "a0_book_w5"
    words = ("--lake", tmp_path, "import", "x", folder, "--format", "timely")
    code, err = refused(capsys, *words, "--timely", release)
    assert (code, "CAP-TIMELY" in err, "0.31 or 0.32" in err) == (2, True, True)
    words = ("--lake", tmp_path, "listen", "x", "--port", 8000, "--workers", 1)
    types = ("--time-type", "u64", "--record-type", "u64")
    code, err = refused(capsys, *words, *types, "--timely", release)
    assert (code, "CAP-TIMELY" in err) == (2, True)
    lake = Lake.at(tmp_path)
    lay_tape(lake, "s", ["a"], [(0,)], None, time_type=TimeType.of(t=Kind.BIGINT))
    for command in (
        ("export", "s", tmp_path / "out", "--format", "jsonl"),
        ("serve", "s", "--to", "localhost:9", "--format", "jsonl"),
        ("replay", "s", "--into-stream", "copy"),
    ):
        code, err = refused(capsys, "--lake", tmp_path, *command, "--timely", release)
        assert (code, "CAP-TIMELY" in err, command) == (2, True, command)
    assert (lake.streams(), (tmp_path / "out").exists()) == (["s"], False)


def test_recordings_that_do_not_decide_are_asked(capsys, tmp_path):
    for folder in ("timely", "timely032"):
        name = "worker-0.jsonl" if folder == "timely" else "worker-1.jsonl"
        shutil.copy(CONFORMANCE / folder / "a0_book_w5" / name, tmp_path)
    (tmp_path / "case.json").write_text(json.dumps({"minimum": 0}))
    words = ("--lake", tmp_path / "lake", "import", "x", tmp_path, "--format", "jsonl")
    code, err = refused(capsys, *words)
    assert (code, "CAP-TIMELY" in err, "give --timely 0.31 or" in err) == (2, True, True)
