"""The command line as far as it goes without Spark: requests that are refused, listings, errors."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from capstan.cli import app, main
from capstan.cli.app import hoisted
from capstan.errors import (
    CheckFailedError,
    FencedError,
    IncompleteError,
    RangeLockedError,
    SystemFailureError,
)

COMMANDS = sorted(app._COMMANDS)
FLIGHTS = Path(__file__).parents[3] / "dags" / "streams.yaml"


@pytest.fixture
def lake(tmp_path, monkeypatch):
    """A lake without anything in it, as the environment names it."""
    place = tmp_path / "lake"
    place.mkdir()
    monkeypatch.setenv("CAPSTAN_LAKE", str(place))
    monkeypatch.setenv("CAPSTAN_CONFIG", str(FLIGHTS))
    return place


@pytest.fixture
def refused(capsys):
    """Run a command that must be refused, as people see it and as JSON; the error object."""

    def run(*words, exit_code=2):
        capsys.readouterr()
        assert main(words) == exit_code
        out, err = capsys.readouterr()
        assert out == ""
        code = main([*words, "--json"])
        to_json, nothing = capsys.readouterr()
        assert (code, nothing) == (exit_code, "")
        assert to_json.count("\n") == 1
        error = json.loads(to_json)
        lines = err.splitlines()
        assert lines[0] == f"{error['error']}: {' '.join(error['message'].split())}"
        assert lines[1:] == ([f"  {' '.join(error['hint'].split())}"] if error["hint"] else [])
        assert "Traceback" not in err
        return error

    return run


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command, capsys):
    assert main([command, "--help"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"Example: capstan {command}" in out


def test_help_lists_all_commands_and_exit_codes(capsys):
    assert main([]) == 0
    alone = capsys.readouterr().out
    assert main(["--help"]) == 0
    assert capsys.readouterr().out == alone
    assert all(f" {command} " in alone for command in COMMANDS)
    assert "5 something broke" in " ".join(alone.split())


def test_help_needs_neither_spark_nor_a_lake():
    code = (
        "import sys; from capstan.cli import main; main(['replay', '--help']); "
        "sys.exit(any(name in sys.modules for name in ('pyspark', 'deltalake', 'pyarrow')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "about"),
    [
        (["wrong"], "wrong"),
        (["show"], "STREAM"),
        (["replay", "flights"], "--into"),
        (["plan", "flights", "--into", "x", "--peers", "two"], "--peers"),
        (["plan", "flights", "--into", "x", "--mode", "overwrite"], "overwrite"),
        (["verify", "flights", "--as-of", "new"], "--as-of"),
        (["runs", "--limit", "-1"], "--limit"),
        (["check"], "PATH"),
        (["show", "flights", "--lake"], "--lake"),
    ],
)
def test_wrong_usage_ends_with_2(words, about, refused):
    error = refused(*words)
    assert error["error"] == "CAP-USAGE"
    assert about in error["message"]
    assert "--help" in error["hint"]


@pytest.mark.parametrize(
    "words",
    [
        ["streams"],
        ["runs"],
        ["show", "flights"],
        ["verify", "flights"],
        ["close", "flights"],
        ["plan", "flights", "--into", "march"],
        ["replay", "flights", "--into", "march"],
        ["audit", "march-00000000-1"],
        ["audit", "flights", "--against", "march"],
        ["publish", "march-00000000-1"],
        ["rollback", "march-00000000-1"],
        ["unlock", "march-00000000-1"],
    ],
)
def test_a_missing_lake_is_refused(words, tmp_path, refused):
    error = refused(*words, "--lake", str(tmp_path / "nowhere"))
    assert error["error"] == "CAP-LAKE"
    assert "nowhere" in error["message"]
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["show", "flights"],
        ["verify", "flights"],
        ["close", "flights"],
        ["plan", "flights", "--into", "march"],
        ["replay", "flights", "--into", "march"],
        ["audit", "flights", "--against", "march"],
    ],
)
def test_a_stream_without_a_tape_is_refused(words, lake, refused):
    assert refused(*words)["error"] == "CAP-STREAM"


@pytest.mark.parametrize("name", ["../x", "a'b", "x; DROP TABLE y", "x`y", "", "X", "a" * 65])
@pytest.mark.parametrize(
    "words",
    [
        ["show", "{}"],
        ["verify", "{}"],
        ["close", "{}"],
        ["plan", "{}", "--into", "march"],
        ["replay", "flights", "--into", "{}"],
        ["plan", "flights", "--into", "march", "--follow", "{}"],
        ["audit", "flights", "--against", "{}"],
        ["runs", "--target", "{}"],
        ["runs", "--stream", "{}"],
    ],
)
def test_names_are_checked_before_they_become_paths(words, name, lake, refused):
    error = refused(*(word.format(name) for word in words))
    assert error["error"] == "CAP-NAME"
    assert list(lake.iterdir()) == []


@pytest.mark.parametrize("name", ["../x", "a'b", "x; DROP TABLE y", "nothing"])
def test_an_undeclared_stream_is_not_captured(name, lake, refused):
    error = refused("capture", name)
    assert error["error"] == "CAP-STREAM"
    assert error["known"] == ["flights"]
    assert list(lake.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        ["--pause", "--resume"],
        ["--because", ""],
        ["--pause", "--chunk", "2"],
        ["--resume", "--order", "oldest"],
        ["--pause", "--dry-run"],
    ],
)
def test_a_pause_goes_with_nothing_else(words, lake, refused):
    error = refused("backfill", "flights_by_day", *words)
    assert (error["error"], list(lake.iterdir())) == ("CAP-USAGE", [])


def test_backfills_are_paused_and_go_on(lake, refused, capsys):
    assert refused("backfill", "nothing", "--pause")["error"] == "CAP-REPLAY"
    pause = ("backfill", "flights_by_day", "--pause", "--because", "a move")
    assert main(pause) == 0
    said = capsys.readouterr().out
    assert re.match(r"backfills of replay flights_by_day are paused by .* UTC: a move; `cap", said)
    assert main([*pause[:-1], "another", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert (value["paused"], value["because"], value["unchanged"]) == (True, "a move", True)
    assert refused("backfill", "flights_by_day", exit_code=3)["error"] == "CAP-PAUSED"
    for unchanged in (False, True):
        assert main(["backfill", "flights_by_day", "--resume", "--json"]) == 0
        value = json.loads(capsys.readouterr().out)
        assert value == {"replay": "flights_by_day", "paused": False, "unchanged": unchanged}
    assert refused("backfill", "flights_by_day")["error"] == "CAP-STREAM"


@pytest.mark.parametrize("command", ["publish", "rollback", "unlock", "audit"])
@pytest.mark.parametrize("run", ["march-00000000-1", "../../x", "x' OR '1'='1"])
def test_an_unknown_run_is_refused(command, run, lake, refused):
    assert refused(command, run)["error"] == "CAP-RUN"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--peers", "0"], "CAP-PEERS"),
        (["--peers", "-3"], "CAP-PEERS"),
        (["--peers", "10001"], "CAP-PEERS"),
        (["--workers", " , "], "CAP-LIST"),
        (["--keys", ","], "CAP-LIST"),
        (["--workers", 'EWR,"a,b'], "CAP-LIST"),
        (["--keys", "a b"], "CAP-NAME"),
        (["--follow", "f", "--until", "3"], "CAP-FOLLOW"),
    ],
)
def test_options_that_cannot_be_combined(options, code, lake, refused):
    for command in ("plan", "replay"):
        assert refused(command, "flights", "--into", "march", *options)["error"] == code


def test_a_run_is_audited_without_the_options_of_a_table(lake, refused):
    error = refused("audit", "march-00000000-1", "--since", "2013-03-01")
    assert error["error"] == "CAP-AUDIT-RUN"
    assert "--against" in error["hint"]


def test_bad_yaml_is_named_with_its_line(lake, tmp_path, refused):
    path = tmp_path / "streams.yaml"
    path.write_text("streams:\n  flights:\n    source: [\n", encoding="utf-8")
    error = refused("capture", "flights", "--config", str(path))
    assert error["error"] == "CAP-DECLARE"
    assert f"{path}:" in error["message"]
    assert refused("streams", "--config", str(path))["error"] == "CAP-DECLARE"
    missing = tmp_path / "missing.yaml"
    assert refused("capture", "flights", "--config", str(missing))["error"] == "CAP-DECLARE"
    assert refused("streams", "--config", str(missing))["error"] == "CAP-DECLARE"


def test_a_faulty_declaration_leaves_the_others(lake, tmp_path, capsys):
    path = tmp_path / "streams.yaml"
    path.write_text(
        """
streams:
  bad: {source: {format: parquet, path: /b}, worker: {by: key}, time: {domain: epoch}}
targets:
  wide: {columns: 7}
""",
        encoding="utf-8",
    )
    given = ("--lake", str(lake), "--config", str(path))
    assert main([*given, "capture", "bad", "--json"]) == 2
    printed, nothing = capsys.readouterr()
    assert (json.loads(printed)["error"], nothing) == ("CAP-DECLARE", "")
    assert main([*given, "streams"]) == 0
    printed = capsys.readouterr().err
    assert f"left out: CAP-DECLARE: {path}:3: streams.bad.worker: " in printed
    assert f"left out: CAP-DECLARE: {path}:5: targets.wide.columns" in printed


def test_the_demonstration_needs_its_stream(lake, tmp_path, refused):
    path = tmp_path / "streams.yaml"
    path.write_text("streams: {}\n", encoding="utf-8")
    assert refused("demo", "--config", str(path))["error"] == "CAP-STREAM"
    assert list(lake.iterdir()) == []


def test_streams_lists_declared_streams_without_a_tape(lake, capsys):
    assert main(["streams", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["streams"]
    assert (row["stream"], row["captured"], row["declared"]) == ("flights", False, True)
    assert main(["streams"]) == 0
    assert "flights" in capsys.readouterr().out


def test_runs_of_a_lake_without_runs(lake, capsys):
    assert main(["runs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"runs": [], "total": 0}


@pytest.mark.parametrize("words", [["--json", "runs"], ["runs", "--json"]])
def test_json_can_come_before_or_after_the_command(words, lake, capsys):
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["total"] == 0


def test_shared_options_are_found_in_any_position():
    words = ["show", "--json", "a", "--lake", "x", "--config=y", "--as-of", "3", "--debug"]
    shared = ["--json", "--debug", "--lake", "x", "--config=y"]
    assert list(hoisted(words)) == [*shared, "show", "a", "--as-of", "3"]


def test_nothing_after_two_dashes_is_an_option(lake, refused, capsys):
    assert list(hoisted(["check", "--", "--json"])) == ["check", "--", "--json"]

    assert main(["check", "--", "--json"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("CAP-FILE: --json does not exist")


def test_the_former_name_of_an_option_is_taken() -> None:
    assert list(hoisted(["show", "a", "--streams=y"])) == ["--config=y", "show", "a"]
    assert list(hoisted(["show", "a", "--streams", "y"])) == ["--config", "y", "show", "a"]


def test_a_former_option_without_effect_is_taken() -> None:
    assert list(hoisted(["replay", "a", "--direct", "--into", "b"])) == [
        "replay",
        "a",
        "--into",
        "b",
    ]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CheckFailedError("CAP-AUDIT", "it is\nnot", "look"), 1),
        (IncompleteError("CAP-INCOMPLETE", "not yet", "wait", frontier=[3]), 3),
        (RangeLockedError("CAP-HELD", "run x holds it", "wait", holder="x"), 4),
        (SystemFailureError("CAP-JAVA", "no Java"), 5),
        (FencedError("CAP-FENCED", "taken over", "see"), 5),
    ],
)
def test_an_error_ends_with_the_code_of_its_class(error, code, monkeypatch, lake, refused):
    def fail(*_):
        raise error

    monkeypatch.setattr("capstan.reporting.listings.run_rows", fail)
    actual = refused("runs", exit_code=code)
    assert actual == error.to_json()


def test_an_unexpected_error_is_one_line_and_exit_code_5(monkeypatch, lake, refused, capsys):
    def fail(*_):
        raise ValueError("what?")

    monkeypatch.setattr("capstan.reporting.listings.run_rows", fail)
    error = refused("runs", exit_code=5)
    assert (error["error"], error["message"]) == ("CAP-BROKEN", "ValueError: what?")
    assert main(["runs", "--debug"]) == 5
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "CAP-BROKEN" in err.splitlines()[-2]


def test_a_full_disk_is_reported_as_such(monkeypatch, lake, refused):
    def fail(*_):
        raise OSError(28, "No space left on device", "/somewhere")

    monkeypatch.setattr("capstan.reporting.listings.run_rows", fail)
    error = refused("runs", exit_code=5)
    assert (error["error"], error["path"]) == ("CAP-DISK-FULL", "/somewhere")


def test_an_interrupt_ends_with_130_and_one_line(monkeypatch, lake, capsys):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("capstan.reporting.listings.run_rows", stop)
    assert main(["runs"]) == 130
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("CAP-INTERRUPTED: interrupted\n")
    assert "Traceback" not in err


def test_doctor_shows_remedies_and_exits_with_1(monkeypatch, lake, capsys):
    from capstan.cli.doctor import Diagnosis

    good, bad = Diagnosis("Java", True, "17"), Diagnosis("Disk", False, "0 GiB", "make room")
    monkeypatch.setattr("capstan.cli.doctor.diagnose", lambda place, deep: [good])
    assert main(["doctor"]) == 0
    assert "everything is in place" in capsys.readouterr().out
    monkeypatch.setattr("capstan.cli.doctor.diagnose", lambda place, deep: [good, bad])
    assert main(["doctor"]) == 1
    assert "make room" in capsys.readouterr().out
    assert main(["doctor", "--json"]) == 1
    actual = json.loads(capsys.readouterr().out)
    assert (actual["ok"], [item["ok"] for item in actual["findings"]]) == (False, [True, False])


def test_doctor_checks_the_named_lake(tmp_path, monkeypatch):
    seen = []
    look = "capstan.cli.doctor.diagnose"
    monkeypatch.setattr(look, lambda place, deep: seen.append((place, deep)) or [])
    assert main(["doctor", "--lake", str(tmp_path), "--deep"]) == 0
    assert seen == [(str(tmp_path), True)]


def test_the_program_itself_prints_one_object(lake):
    program = Path(sys.executable).with_name("capstan")
    done = subprocess.run([program, "--json", "show", "x"], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (2, b"")
    assert json.loads(done.stdout)["error"] == "CAP-STREAM"
    quiet = subprocess.run(f"{program} runs | true", shell=True, capture_output=True, check=False)
    assert quiet.stderr == b""
