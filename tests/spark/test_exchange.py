"""Recordings of real timely programs: onto a tape, judged there, played, and off it again."""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest

from capstan.errors import AnswerIsNo, BadRequest
from capstan.exchange import Form, export_recordings, import_recordings
from capstan.exchange.exporting import form_of
from capstan.exchange.form import Format, find_recordings
from capstan.replay.request import Request
from capstan.replay.run import replay
from capstan.tape import summary
from capstan.tape.tape import newest_cut, open_tape
from capstan.testing.streams import declared, lay_in, little_stream, rows
from capstan.verify import verify

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from capstan.exchange import Imported
    from capstan.tape.lake import Lake

TIMELY = Path(__file__).parent.parent / "conformance" / "timely"
MUTANTS = json.loads((TIMELY / "mutants" / "expected.json").read_text(encoding="utf-8"))["mutants"]


def put(
    spark: SparkSession, lake: Lake, case: str, form: Format, *, unchecked: bool = False
) -> Imported:
    folder = TIMELY / case
    return import_recordings(
        spark,
        lake,
        case,
        find_recordings(folder, form),
        Form.of(folder, form),
        unchecked=unchecked,
    )


def expected(case: str) -> dict:
    return json.loads((TIMELY / case / "expected.json").read_text(encoding="utf-8"))


def time_json(time: dict) -> object:
    values = list(time.values())
    return values[0] if len(values) == 1 else values


def multiset(frame: pl.DataFrame) -> str:
    """The hash of a multiset, as the recordings' FORMAT.md has it."""
    lines = []
    for row in frame.iter_rows(named=True):
        data = {name: value for name, value in row.items() if not name.startswith("_")}
        record = data["value"] if "value" in data else list(data.values())
        pair = [time_json(row["_time"]), record]
        lines.append(json.dumps(pair, separators=(",", ":"), ensure_ascii=False))
    return hashlib.sha256("".join(f"{line}\n" for line in sorted(lines)).encode()).hexdigest()


@pytest.mark.parametrize(
    ("case", "form"),
    [
        ("d1_product_w2", Format.TIMELY),
        ("d1_product_w2", Format.JSONL),
        ("g0_strings_w3", Format.TIMELY),
        ("k0_i64_w2", Format.TIMELY),
        ("f0_no_data_w3", Format.JSONL),
        ("e2_torn_w2", Format.TIMELY),
    ],
)
def test_a_recording_of_timely_is_sound_here_and_comes_out_as_it_was(
    spark: SparkSession, lake: Lake, tmp_path: Path, case: str, form: Format
) -> None:
    wanted = expected(case)
    done = put(spark, lake, case, form)
    tape = open_tape(lake, case)
    verification = verify(spark, lake, tape, deep=True)
    for verdict, stream in zip(verification.workers, wanted["streams"], strict=True):
        assert verdict.valid
        found = verdict.as_json(tape.time_type)
        events = stream["progress_events"] + stream["message_events"]
        assert (found["events"], found["records"]) == (events, stream["records"])
        assert (found["holdings"], found["closed"]) == (stream["final_holdings"], stream["closed"])
    unfinished = {name: file["trailing_bytes"] for name, file in wanted["files"].items()}
    torn = {Path(each.path).name for each in done.surveys if each.torn}
    assert torn == {name for name, size in unfinished.items() if size and form is Format.TIMELY}

    assert put(spark, lake, case, form).stood
    out = tmp_path / "out"
    written = form_of(tape, form)
    workers = summary.worker_labels(tape, newest_cut(tape))
    export_recordings(spark, lake, tape, out, written, workers=workers)
    for recording in find_recordings(TIMELY / case, form):
        path = Path(recording.path)
        data = path.read_bytes()
        whole = data[: len(data) - unfinished.get(path.name, 0)]
        assert (out / path.name).read_bytes() == whole
    assert Form.of(out, form).to_json() == Form.of(TIMELY / case, form).to_json()


def test_what_is_played_of_it_is_what_timely_replayed(spark: SparkSession, lake: Lake) -> None:
    case = "d1_product_w2"
    put(spark, lake, case, Format.TIMELY)
    wanted = expected(case)
    nothing = declared(little_stream(Path("nowhere")))
    for peers in (1, 3):
        request = Request(case, f"played_{peers}", peers=peers, partial=True)
        found = replay(spark, lake, nothing, request).as_json()
        assert (found["records"], found["published"]) == (wanted["records"], True)
        assert multiset(pl.read_delta(lake.table(f"played_{peers}"))) == wanted["multiset_sha256"]


def test_numbers_that_a_tape_cannot_hold_are_refused(spark: SparkSession, lake: Lake) -> None:
    for form in Format:
        with pytest.raises(BadRequest) as refused:
            put(spark, lake, "k1_u64_max_w1", form, unchecked=True)
        assert refused.value.code == "CAP-BIGINT"
        assert "worker-0" in refused.value.message
    assert lake.streams() == []


def beyond(mutant: dict) -> bool:
    """Whether a mutant has a number that no BIGINT holds."""
    text = (TIMELY / "mutants" / mutant["file"]).read_text(encoding="utf-8")
    return any(int(n) < -(2**63) or int(n) >= 2**63 for n in re.findall(r"-?\d{19,}", text))


def test_of_the_mutants_few_are_beyond_a_tape() -> None:
    assert len(MUTANTS) - sum(map(beyond, MUTANTS)) > 120


def mutants_by_minimum() -> dict[str, list[dict]]:
    found = defaultdict(list)
    for mutant in MUTANTS:
        found[json.dumps(mutant["minimum"])].append(mutant)
    return found


@pytest.mark.parametrize("minimum", sorted(mutants_by_minimum()))
def test_mutants_break_on_a_tape_where_they_break_in_the_file(
    spark: SparkSession, lake: Lake, tmp_path: Path, minimum: str
) -> None:
    folder = tmp_path / "mutants"
    folder.mkdir()
    mutants = sorted(mutants_by_minimum()[minimum], key=lambda mutant: mutant["file"])
    mutants = [mutant for mutant in mutants if not beyond(mutant)]
    for mutant in mutants:
        (folder / mutant["file"]).write_bytes((TIMELY / "mutants" / mutant["file"]).read_bytes())
    form = Form.of(folder, Format.JSONL, minimum=json.loads(minimum))
    recordings = find_recordings(folder, Format.JSONL)
    assert [Path(each.path).name for each in recordings] == [each["file"] for each in mutants]
    with pytest.raises(AnswerIsNo, match="CAP-VIOLATION"):
        import_recordings(spark, lake, "mutants", recordings, form)
    assert lake.streams() == []

    import_recordings(spark, lake, "mutants", recordings, form, unchecked=True)

    tape = open_tape(lake, "mutants")
    for verdict, mutant in zip(verify(spark, lake, tape).workers, mutants, strict=True):
        violation = verdict.violation and (verdict.violation.seq, verdict.violation.rule.value)
        told = mutant["expected"]
        wanted = None if told["valid"] else (told["first_violation_seq"], told["rule"])
        assert (mutant["file"], violation) == (mutant["file"], wanted)


def test_a_captured_stream_can_be_taken_elsewhere(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    from capstan.capture.run import capture

    lay_in(tmp_path / "source", rows(range(30)), files=2)
    capture(spark, lake, little_stream(tmp_path / "source"))
    tape = open_tape(lake, "little")
    out = tmp_path / "out"
    with pytest.raises(BadRequest, match="CAP-FILE"):
        form_of(tape, Format.TIMELY)
    form = form_of(tape, Format.JSONL)
    done = export_recordings(spark, lake, tape, out, form, workers=[0, 2])
    assert [each.records for each in done.files] == [10, 10]
    with pytest.raises(BadRequest, match="CAP-EXISTS"):
        export_recordings(spark, lake, tape, out, form, workers=[0])

    again = Form.of(out, Format.JSONL)
    import_recordings(spark, lake, "again", find_recordings(out, Format.JSONL), again)
    copy = open_tape(lake, "again")
    verdicts = verify(spark, lake, copy, deep=True).workers
    was = verify(spark, lake, tape, workers=[0, 2]).workers
    assert [(v.valid, v.events, v.holdings) for v in verdicts] == [
        (v.valid, v.events, v.holdings) for v in was
    ]
    kept = pl.read_delta(copy.paths.records)["data"].struct.field("json").to_list()
    assert sorted(json.loads(text)["id"] for text in kept) == [
        n for n in range(30) if n % 3 in (0, 2)
    ]
    with pytest.raises(BadRequest, match="CAP-EXISTS"):
        import_recordings(spark, lake, "little", find_recordings(out, Format.JSONL), again)
