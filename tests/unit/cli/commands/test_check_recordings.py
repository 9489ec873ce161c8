"""`capstan check` on timely's files, and with types given."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from capstan.cli import main
from capstan.core.protocol import Messages, Progress
from capstan.interop.timely import EventTypes, Frames, Lines, encode_event

TIMELY = Path(__file__).parents[3] / "conformance" / "timely"
CASES = sorted(path.parent for path in TIMELY.glob("*/case.json"))
SOUND = (Messages.of((0,), [1, 2]), Progress.of([((0,), -1), ((3,), 1)]))
LATE = Messages.of((2,), [7])


@pytest.fixture
def check(capsys):
    """Run `check --json`; the exit code and the object."""

    def run(*words):
        code = main(["check", "--json", *map(str, words)])
        out, err = capsys.readouterr()
        assert err == ""
        return code, json.loads(out)

    return run


def write(path, events, time_type="u64", record_type="u64"):
    types = EventTypes.of(time_type, record_type)
    path.write_bytes(b"".join(encode_event(types, event) for event in events))
    return path


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_timely_files_have_the_verdict_of_their_transcripts(case, check):
    paths = sorted(case.glob("*.bin"))
    code, actual = check(*paths)
    assert (code, actual["valid"]) == (0, True)
    _, transcripts = check(case)
    expected = json.loads((case / "expected.json").read_text(encoding="utf-8"))["files"]
    for path, item, transcript in zip(
        paths, actual["streams"], transcripts["streams"], strict=True
    ):
        assert item["file"] == str(path)
        assert item["worker"] == int(path.stem.removeprefix("worker-"))
        assert item["events"] == expected[path.name]["whole_frames"]
        for key in ("valid", "events", "records", "holdings", "frontier", "closed", "violation"):
            assert item[key] == transcript[key]
        torn = item["torn"]
        assert (torn["bytes"] if torn else 0) == expected[path.name]["trailing_bytes"]
        if torn:
            assert torn["offset"] == path.stat().st_size - torn["bytes"]
        assert transcript["torn"] is None


def test_a_torn_tail_is_reported(capsys):
    assert main(["check", str(TIMELY / "e2_torn_w2" / "worker-0.bin")]) == 0
    out = capsys.readouterr().out
    assert "torn at byte 681, in a frame of" in out
    assert "the complete part was checked" in out


def test_types_and_minimum_can_be_given(tmp_path, check):
    path = write(tmp_path / "worker-12.bin", [Messages.of((-9, 4), [("a", 1)])],
                 "Product<i64,u8>", "(string, u16)")  # fmt: skip
    types = ("--time-type", "Product<i64,u8>", "--record-type", "(string,u16)")
    code, actual = check(path, *types)
    (item,) = actual["streams"]
    assert (code, item["worker"], item["records"]) == (0, 12, 1)
    # By default the type's own.
    assert item["frontier"] == [[-(2**63), 0]]
    code, actual = check(path, *types, "--minimum", "[-8, 0]")
    (item,) = actual["streams"]
    assert (code, item["violation"]["rule"], item["violation"]["time"]) == (1, "message", [-9, 4])


def test_a_broken_file_is_invalid_with_its_place(tmp_path, check, capsys):
    late = write(tmp_path / "late.bin", [*SOUND, LATE])
    damaged = write(tmp_path / "damaged.bin", SOUND)
    size = damaged.stat().st_size
    damaged.write_bytes(damaged.read_bytes() + b"trailing rubbish")
    types = ("--time-type", "u64", "--record-type", "u64")
    code, actual = check(late, damaged, *types)
    assert (code, actual["valid"]) == (1, False)
    first, second = actual["streams"]
    assert (first["violation"]["seq"], first["violation"]["rule"]) == (2, "message")
    assert (second["violation"]["seq"], second["violation"]["rule"]) == (2, "shape")
    assert f"the frame at byte {size}: its length is" in second["violation"]["about"]
    assert (second["events"], second["records"], second["holdings"]) == (2, 2, [[3, 1]])
    code, actual = check(late, "--time-type", "u64", "--record-type", "string")
    assert (code, actual["streams"][0]["violation"]["rule"]) == (1, "shape")
    assert main(["check", str(damaged), *types]) == 1
    assert f"the frame at byte {size}" in capsys.readouterr().out


def test_a_folder_is_checked_completely_and_in_order(tmp_path, check):
    for worker in (10, 2):
        write(tmp_path / f"worker-{worker}.bin", SOUND)
    shutil.copy(TIMELY / "a0_book_w5" / "case.json", tmp_path)
    code, actual = check(tmp_path)
    assert (code, [item["worker"] for item in actual["streams"]]) == (0, [2, 10])


def test_given_types_are_checked_in_transcripts(tmp_path, check):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"worker":0,"seq":0,"event":"messages","time":0,"data":["a"]}\n')
    assert check(path)[0] == 0
    assert check(path, "--time-type", "u8", "--record-type", "string")[0] == 0
    code, actual = check(path, "--time-type", "u8", "--record-type", "u8")
    assert (code, actual["streams"][0]["violation"]["rule"]) == (1, "shape")
    assert "not a value of u8: 'a'" in actual["streams"][0]["violation"]["about"]
    code, actual = check(path, "--time-type", "u8")
    assert (code, actual["error"]) == (2, "CAP-FILE")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ((), "CAP-FILE"),
        (("--time-type", "u64"), "CAP-FILE"),
        (("--time-type", "string", "--record-type", "u64"), "CAP-TYPE"),
        (("--time-type", "u64", "--record-type", "Vec<"), "CAP-TYPE"),
        (("--time-type", "u64", "--record-type", "u64", "--minimum", "-1"), "CAP-TIME"),
        (("--time-type", "u64", "--record-type", "u64", "--minimum", "[0]"), "CAP-TIME"),
    ],
)
def test_unreadable_recordings_are_refused(words, error, tmp_path, check):
    path = write(tmp_path / "x.bin", SOUND)
    code, actual = check(path, *words)
    assert (code, actual["error"]) == (2, error)


STAMPED = sorted((TIMELY.parent / "timely032").glob("s*"))


@pytest.mark.parametrize("case", STAMPED, ids=lambda case: case.name)
@pytest.mark.parametrize("suffix", ["bin", "jsonl"])
def test_recordings_of_timely_0_32_are_checked(case, suffix, check):
    paths = sorted(case.glob(f"*.{suffix}"))
    expected = json.loads((case / "expected.json").read_text(encoding="utf-8"))["streams"]
    for words in ((), ("--timely", "0.32")):
        code, actual = check(*paths, *words)
        assert (code, actual["valid"]) == (0, True)
        for item, stream in zip(actual["streams"], expected, strict=True):
            assert (item["events"], item["records"]) == (stream["events"], stream["records"])
            assert item["holdings"] == stream["final_holdings"]
            assert item["frontier"] == stream["final_frontier"]
            assert item["timely"] == ("0.32" if words or suffix == "bin" else None)
            assert item["assumed"] == (not words and suffix == "bin")
    code, actual = check(*paths, "--timely", "0.31")
    assert (code, actual["streams"][0]["violation"]["rule"]) == (1, "shape")
    about = actual["streams"][0]["violation"]["about"]
    assert ("it fits timely 0.32" if suffix == "bin" else "those of timely 0.32") in about


def test_what_was_assumed_is_told(capsys):
    assert main(["check", str(STAMPED[0] / "worker-0.bin")]) == 0
    assert "1 read as recordings of timely 0.32; --timely declares it" in capsys.readouterr().out
    code = main(["check", "--timely", "0.30", str(STAMPED[0] / "worker-0.bin")])
    assert (code, "CAP-TIMELY" in capsys.readouterr().err) == (2, True)


@pytest.mark.parametrize("suffix", ["bin", "jsonl"])
def test_pairs_of_a_case_are_ordered_as_pairs(suffix, tmp_path, check):
    types = EventTypes.of("(u64,u64)", "u64")
    (tmp_path / "case.json").write_text(json.dumps(types.to_json()))
    events = [Progress.of([((0, 5), 1), ((0, 0), -1)]), Messages.of((1, 0), [7])]
    encoding = Frames(types) if suffix == "bin" else Lines.of(types)
    path = tmp_path / f"worker-0.{suffix}"
    path.write_bytes(b"".join(encoding.encode(event, at) for at, event in enumerate(events)))
    code, actual = check(path)
    assert (code, actual["streams"][0]["records"]) == (0, 1)
    assert check(path, "--time-type", "Product<u64,u64>", "--record-type", "u64")[0] == 1


def test_the_order_of_times_is_known_without_the_type_of_records(tmp_path, check):
    events = [Progress.of([((0, 5), 1), ((0, 0), -1)]), Messages.of((1, 0), [7])]
    path, case = tmp_path / "worker-0.jsonl", tmp_path / "case.json"
    lines = Lines([0, 0])
    path.write_bytes(b"".join(lines.encode(event, at) for at, event in enumerate(events)))
    for stated, code in (({"order": "lexicographic"}, 0), ({}, 1), ({"order": "random"}, 2)):
        case.write_text(json.dumps({"minimum": [0, 0], **stated}))
        assert check(path)[0] == code
