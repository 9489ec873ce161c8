"""`import`, `verify`, `export` and `serve` of recordings, as they are called from a shell."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from capstan.cli import main
from capstan.core.protocol import Messages, Progress
from capstan.interop.timely import EventTypes, encode_event
from capstan.storage.lake import Lake
from tests.support.socket_receivers import receivers

TIMELY = Path(__file__).parent.parent / "conformance" / "timely"
TORN = TIMELY / "e2_torn_w2"


@pytest.fixture
def run(spark, tmp_path, monkeypatch, capsys):
    """Run a command with `--json`; the exit code and the one object."""
    (tmp_path / "lake").mkdir()
    monkeypatch.setenv("CAPSTAN_LAKE", str(tmp_path / "lake"))

    def run(*words):
        capsys.readouterr()
        code = main([*map(str, words), "--json"])
        out, _ = capsys.readouterr()
        assert out.count("\n") == 1
        # The session is not the command's own, so it is still there.
        assert spark.range(1).count() == 1
        return code, json.loads(out)

    return run


@pytest.fixture
def streams(tmp_path):
    """The names of the streams that are in the lake."""
    return lambda: Lake.at(tmp_path / "lake").streams()


def whole(path):
    """What is whole of a recording that is torn."""
    file = json.loads((TORN / "expected.json").read_text(encoding="utf-8"))["files"][path.name]
    data = path.read_bytes()
    return data[: len(data) - file["trailing_bytes"]]


def test_a_torn_recording_is_told_and_what_is_whole_comes_out(run, tmp_path, capsys):
    code, actual = run("import", "torn", TORN, "--format", "timely")
    assert (code, actual["stream"], actual["valid"], actual["unchanged"]) == (
        0,
        "torn",
        True,
        False,
    )
    assert [(item["worker"], item["violation"]) for item in actual["workers"]] == [
        (0, None), (1, None)
    ]  # fmt: skip
    assert "torn at byte 681" in actual["workers"][0]["torn"]
    assert main(["import", "torn", str(TORN), "--format", "timely"]) == 0
    reported = capsys.readouterr().out
    assert "torn is already on tape" in reported
    assert "torn at byte 681" in reported

    code, verified = run("verify", "torn", "--deep")
    assert (code, verified["valid"]) == (0, True)
    assert sum(item["records"] for item in verified["workers"]) == actual["records"] == 96

    frames, lines = tmp_path / "frames", tmp_path / "lines"
    code, done = run("export", "torn", frames, "--format", "timely")
    assert (code, done["events"], done["records"]) == (0, actual["events"], 96)
    assert [item["file"] for item in done["workers"]] == ["worker-0.bin", "worker-1.bin"]
    code, done = run("export", "torn", lines, "--format", "jsonl", "--workers", "1")
    assert (code, [item["file"] for item in done["workers"]]) == (0, ["worker-1.jsonl"])
    for path in sorted(TORN.glob("*.bin")):
        assert (frames / path.name).read_bytes() == whole(path)
    transcript = (TORN / "worker-1.jsonl").read_bytes()
    assert (lines / "worker-1.jsonl").read_bytes() == transcript
    code, error = run("export", "torn", frames, "--format", "timely")
    assert (code, error["error"]) == (2, "CAP-EXISTS")

    with receivers(2) as (port, got):
        code, served = run("serve", "torn", "--to", f"127.0.0.1:{port}")
    assert code == 0
    assert [(item["to"], item["workers"]) for item in served["peers"]] == [
        (f"127.0.0.1:{port}", [0]), (f"127.0.0.1:{port + 1}", [1])
    ]  # fmt: skip
    assert [bytes(item) for item in got] == [whole(path) for path in sorted(TORN.glob("*.bin"))]


def test_damaged_recordings_import_only_unchecked(run, streams, tmp_path, capsys):
    folder = tmp_path / "damaged"
    shutil.copytree(TIMELY / "g0_strings_w3", folder)
    path = folder / "worker-1.bin"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + b"trailing rubbish")
    code, error = run("import", "damaged", folder, "--format", "timely")
    assert (code, error["error"]) == (1, "CAP-VIOLATION")
    assert str(path) in error["message"]
    assert f"the frame at byte {size}: its length is" in error["message"]
    assert streams() == []

    code, actual = run("import", "damaged", folder, "--format", "timely", "--unchecked")
    assert (code, actual["valid"]) == (0, False)
    assert f"the frame at byte {size}" in actual["workers"][1]["violation"]
    code, verified = run("verify", "damaged")
    assert (code, verified["valid"]) == (1, False)
    broken = verified["workers"][1]
    # All that came before is on tape.
    assert broken["violation"]["seq"] == broken["events"] == actual["workers"][1]["events"] - 1
    assert broken["violation"]["rule"] == "shape"
    assert [item["valid"] for item in verified["workers"]] == [True, False, True]
    code, error = run("export", "damaged", tmp_path / "out", "--format", "timely")
    assert (code, error["error"]) == (1, "CAP-VIOLATION")
    assert not (tmp_path / "out").exists()


def test_types_and_minimum_replace_a_missing_header(run, streams, tmp_path):
    folder = tmp_path / "bare"
    folder.mkdir()
    types = EventTypes.of("Product<i64,u8>", "(string, u16)")
    late = [Messages.of((-9, 4), [("a", 1)]), Progress.of([((-(2**63), 0), -1)])]
    data = b"".join(encode_event(types, event) for event in late)
    (folder / "worker-2.bin").write_bytes(data)
    requested = ("import", "bare", folder, "--format", "timely")
    for words, refused in [
        (requested[:3], (2, "CAP-FORMAT-NAME")),
        (requested, (2, "CAP-FILE")),
        ((*requested[:3], "--format", "jsonl"), (2, "CAP-FILE")),
    ]:
        code, error = run(*words)
        assert (code, error["error"]) == refused
    given = (*requested, "--time-type", "Product<i64,u8>", "--record-type", "(string, u16)")
    code, error = run(*given, "--minimum", "[-8, 0]")
    assert (code, error["error"], error["rule"]) == (1, "CAP-VIOLATION", "message")
    code, error = run("import", "large", TIMELY / "k1_u64_max_w1", "--format", "timely")
    assert (code, error["error"]) == (2, "CAP-BIGINT")
    assert streams() == []
    code, actual = run(*given)
    assert (code, actual["workers"][0]["worker"], actual["records"]) == (0, 2, 1)
    out = tmp_path / "out"
    assert run("export", "bare", out, "--format", "timely")[0] == 0
    assert (out / "worker-2.bin").read_bytes() == data
    assert json.loads((out / "case.json").read_text(encoding="utf-8"))["time_type"] == (
        "Product<i64,u8>"
    )
