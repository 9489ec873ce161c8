"""Recordings of real timely programs: onto a tape, judged there, played, and off it again."""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from datetime import datetime, timedelta
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from capstan.core.protocol import Messages, Progress
from capstan.core.times import complete
from capstan.errors import CheckFailedError, InvalidRequestError
from capstan.interop.timely import Emitted, EventTypes, Replayer, encode_event, open_recording
from capstan.interop.transfer import recording_reader
from capstan.interop.transfer.export_files import export_recordings, form_of
from capstan.interop.transfer.import_files import import_recordings
from capstan.interop.transfer.payload_columns import payload_type, payload_values
from capstan.interop.transfer.recording_format import Form, Format, find_recordings
from capstan.replay.output.certificate import draft_certificate
from capstan.replay.output.rows import played_rows
from capstan.replay.planning.planner import make_plan
from capstan.replay.planning.request import Request
from capstan.replay.run import replay
from capstan.storage.tape import index
from capstan.storage.tape.tape import newest_cut, open_tape
from capstan.verify import verify
from tests.support.conformance_cases import CONFORMANCE, MUTANTS, RELEASES
from tests.support.custom_type import register_complex
from tests.support.sample_streams import HOUR, declared, lay_in, little_stream, rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _pytest.mark import ParameterSet
    from pyspark.sql import SparkSession

    from capstan.core.protocol import Event
    from capstan.interop.transfer.import_files import ImportResult
    from capstan.storage.lake import Lake
    from capstan.storage.tape.tape import Tape
    from capstan.verify import Verification

TIMELY = Path(__file__).parent.parent / "conformance" / "timely"
CASES = sorted(path.parent.name for path in TIMELY.glob("*/case.json"))
OTHERS_SHOW = ("a0", "b0", "b1", "d0", "e0", "f2")
NOTHING = declared(little_stream(Path("nowhere")))


def put(
    spark: SparkSession, lake: Lake, case: str, form: Format, *, unchecked: bool = False
) -> ImportResult:
    folder = TIMELY / case
    return import_recordings(
        spark,
        lake,
        case,
        find_recordings(folder, form),
        Form.of_folder(folder, form),
        unchecked=unchecked,
    )


def expected(case: str) -> dict:
    return json.loads((TIMELY / case / "expected.json").read_text(encoding="utf-8"))


def time_json(time: dict) -> object:
    values = list(time.values())
    return values[0] if len(values) == 1 else values


def forms() -> Iterator[ParameterSet]:
    """Every case in both forms; nightly what is large, and what shows no more than another does."""
    for case in CASES:
        small = sum(path.stat().st_size for path in (TIMELY / case).glob("*.bin")) < 300_000
        for form in Format:
            shown = case.startswith(OTHERS_SHOW) or (form is Format.JSONL) != case.startswith("f0")
            now = small and not shown
            marks = () if now else pytest.mark.nightly
            yield pytest.param(case, form, marks=marks, id=f"{case}-{form}")


def events_of(case: str, form: Format) -> list[list[Event]]:
    """The events of each file, as the readers have them."""
    given = Form.of_folder(TIMELY / case, form)
    return [
        list(open_recording(Path(recording.path), given.encoding(recording.named)))
        for recording in find_recordings(TIMELY / case, form)
    ]


@pytest.mark.parametrize(("case", "form"), list(forms()))
def test_a_timely_recording_round_trips(
    spark: SparkSession, lake: Lake, tmp_path: Path, case: str, form: Format
) -> None:
    given = Form.of_folder(TIMELY / case, form)
    recorded = events_of(case, form)
    everything = (event for events in recorded for event in events)
    if any(recording_reader.first_oversized_number(event, given) for event in everything):
        with pytest.raises(InvalidRequestError, match="CAP-BIGINT"):
            put(spark, lake, case, form)
        return
    done = put(spark, lake, case, form)
    tape = open_tape(lake, case)
    require_verified(verify(spark, lake, tape, deep=True), tape, case)
    files = expected(case)["files"]
    torn = {Path(survey.path).name for survey in done.surveys if survey.torn}
    unfinished = {name for name, file in files.items() if file["trailing_bytes"]}
    assert torn == (unfinished if form is Format.TIMELY else set())

    require_played(spark, lake, tape, given, recorded)

    assert put(spark, lake, case, form).unchanged
    out = tmp_path / "out"
    written = form_of(tape, form)
    workers = index.worker_labels(tape, newest_cut(tape))
    export_recordings(spark, lake, tape, out, written, workers=workers)
    for recording in find_recordings(TIMELY / case, form):
        path = Path(recording.path)
        data = path.read_bytes()
        tail = files[path.name]["trailing_bytes"] if form is Format.TIMELY else 0
        assert (out / path.name).read_bytes() == data[: len(data) - tail]
    assert Form.of_folder(out, form).to_json() == given.to_json()


def require_verified(verification: Verification, tape: Tape, case: str) -> None:
    """Each recording is found as timely left it."""
    streams = expected(case)["streams"]
    for verdict, stream in zip(verification.workers, streams, strict=True):
        assert verdict.valid
        actual = verdict.to_json(tape.time_type)
        wanted = {**stream, "holdings": stream["final_holdings"]}
        wanted["frontier"] = stream["final_frontier"]
        for key in ("events", "records", "holdings", "frontier", "closed"):
            assert actual[key] == wanted[key], key


def require_played(
    spark: SparkSession, lake: Lake, tape: Tape, form: Form, recorded: list[list[Event]]
) -> None:
    """Every replay that timely made of these recordings is made here, and ends as it did.

    All are played by one job. What is not complete is not played here: of recordings that are
    open the reference says which records are.
    """
    # A replay of no recordings at all cannot be asked for.
    replays = [item for item in expected(tape.name)["replays"] if item["streams"]]
    plans = [
        make_plan(
            lake,
            NOTHING,
            Request(
                tape.name, "t", workers=tuple(map(str, item["streams"])), peers=item["workers"],
                partial=True,
            ),
        )
        for item in replays
    ]  # fmt: skip
    frames = [
        played_rows(spark, plan).withColumn("_replay", F.lit(number))
        for number, plan in enumerate(plans)
    ]
    table = reduce(DataFrame.unionByName, frames).toArrow()
    for number, (wanted, plan) in enumerate(zip(replays, plans, strict=True)):
        assert [tape.time_type.render(t) for t in plan.frontier] == wanted["final_frontier"]
        assert plan.frontier.is_empty == wanted["closed"]
        sources = [recorded[worker] for worker in wanted["streams"]]
        replayer = Replayer(sources, tape.time_type.minimum, wanted["workers"], None)
        emitted = [step.messages for step in replayer if isinstance(step, Emitted)]
        certificate = draft_certificate(
            plan, [stream.content(plan.region) for stream in plan.inputs]
        )
        assert [item["frontier"] for item in certificate.replay_workers] == [
            [tape.time_type.render(time) for time in worker.frontier] for worker in replayer.workers
        ]
        lines = lines_of(table.filter(pc.field("_replay") == number), form)
        assert certificate.records == len(lines)
        if wanted["closed"]:
            assert len(lines) == wanted["records"]
            assert hash_of(lines) == wanted["multiset_sha256"]
        else:
            assert lines == sorted(
                line_of(tape.time_type.render(item.time), record, form)
                for item in emitted
                if complete(plan.frontier, item.time)
                for record in item.data or ()
            )


def lines_of(table: pa.Table, form: Form) -> list[str]:
    """Played rows as the sorted lines of a multiset."""
    record = None if form.types is None else form.types.record
    names = [item.name for item in payload_type(record)]
    columns = [table.column(name).combine_chunks() for name in names]
    values = payload_values(record, pa.StructArray.from_arrays(columns, names))
    times = [time_json(time) for time in table.column("_time").to_pylist()]
    return sorted(line_of(time, value, form) for time, value in zip(times, values, strict=True))


def line_of(time: object, value: object, form: Form) -> str:
    written = value if form.types is None else form.types.record.to_json(value)
    return json.dumps([time, written], separators=(",", ":"), ensure_ascii=False)


def hash_of(lines: list[str]) -> str:
    """The hash of a multiset, as the recordings' FORMAT.md has it."""
    text = "".join(f"{line}\n" for line in sorted(lines, key=str.encode))
    return hashlib.sha256(text.encode()).hexdigest()


def test_what_is_played_of_it_is_what_timely_replayed(spark: SparkSession, lake: Lake) -> None:
    """What was played without being written, above, also ends in a table."""
    case = "d1_product_w2"
    put(spark, lake, case, Format.TIMELY)
    wanted = expected(case)
    request = Request(case, "played", peers=3, partial=True)
    actual = replay(spark, lake, NOTHING, request).to_json()
    assert (actual["records"], actual["published"]) == (wanted["records"], True)
    table = pl.read_delta(lake.table("played")).to_arrow()
    lines = lines_of(table, Form.of_folder(TIMELY / case, Format.TIMELY))
    assert hash_of(lines) == wanted["multiset_sha256"]


def test_numbers_that_a_tape_cannot_hold_are_refused(spark: SparkSession, lake: Lake) -> None:
    for form in Format:
        with pytest.raises(InvalidRequestError) as refused:
            put(spark, lake, "k1_u64_max_w1", form, unchecked=True)
        assert refused.value.code == "CAP-BIGINT"
        assert "worker-0" in refused.value.message
    assert lake.streams() == []


def test_of_all_nans_a_tape_has_one(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    printed = '{"worker":0,"seq":0,"event":"messages","time":0,"data":["NaN:fff8000000000000"]}'
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "worker-0.jsonl").write_text(printed + "\n", encoding="utf-8")
    given = Form.from_options(Format.JSONL, time_type="u64", record_type="f64")
    import_recordings(spark, lake, "odd", find_recordings(tmp_path / "in", Format.JSONL), given)
    tape = open_tape(lake, "odd")
    export_recordings(spark, lake, tape, tmp_path / "out", given, workers=[0])
    received = (tmp_path / "out" / "worker-0.jsonl").read_text(encoding="utf-8")
    assert received == printed.replace("NaN:fff8000000000000", "NaN") + "\n"


@pytest.mark.parametrize("form", Format)
def test_recordings_without_any_event_are_refused(
    spark: SparkSession, lake: Lake, tmp_path: Path, form: Format
) -> None:
    """A stream of none could neither be imported again nor closed."""
    for worker in range(2):
        (tmp_path / f"worker-{worker}{form.suffix}").touch()
    given = Form.from_options(form, time_type="u64", record_type="u64")
    for _ in range(2):
        with pytest.raises(
            InvalidRequestError, match="CAP-FILE: there is no event in .*worker-0.* of the 2"
        ):
            import_recordings(spark, lake, "none", find_recordings(tmp_path, form), given)
    assert lake.streams() == []


def text_of(mutant: dict) -> str:
    return (CONFORMANCE / mutant["folder"] / "mutants" / mutant["file"]).read_text(encoding="utf-8")


def beyond(mutant: dict) -> bool:
    """Whether a mutant has a number that no BIGINT holds."""
    text = text_of(mutant)
    return any(int(n) < -(2**63) or int(n) >= 2**63 for n in re.findall(r"-?\d{19,}", text))


def test_of_the_mutants_few_are_beyond_a_tape() -> None:
    assert len(MUTANTS) - sum(map(beyond, MUTANTS)) > 320


def mutants_by_form() -> dict[tuple[str, str], list[dict]]:
    actual = defaultdict(list)
    for mutant in MUTANTS:
        actual[mutant["folder"], json.dumps(mutant["minimum"])].append(mutant)
    return actual


@pytest.mark.parametrize(("folder", "minimum"), sorted(mutants_by_form()))
def test_mutants_break_on_a_tape_where_they_break_in_the_file(
    spark: SparkSession, lake: Lake, tmp_path: Path, folder: str, minimum: str
) -> None:
    place = tmp_path / "mutants"
    place.mkdir()
    mutants = sorted(mutants_by_form()[folder, minimum], key=lambda mutant: mutant["file"])
    mutants = [mutant for mutant in mutants if not beyond(mutant)]
    for mutant in mutants:
        (place / mutant["file"]).write_text(text_of(mutant), encoding="utf-8")
    form = Form.of_folder(place, Format.JSONL, minimum=json.loads(minimum), timely=RELEASES[folder])
    recordings = find_recordings(place, Format.JSONL)
    assert [Path(item.path).name for item in recordings] == [item["file"] for item in mutants]
    with pytest.raises(CheckFailedError, match="CAP-VIOLATION"):
        import_recordings(spark, lake, "mutants", recordings, form)
    assert lake.streams() == []

    import_recordings(spark, lake, "mutants", recordings, form, unchecked=True)

    tape = open_tape(lake, "mutants", stamps=True)
    for verdict, mutant in zip(verify(spark, lake, tape).workers, mutants, strict=True):
        violation = verdict.violation and (verdict.violation.seq, verdict.violation.rule.value)
        reported = mutant["expected"]
        wanted = None if reported["valid"] else (reported["first_violation_seq"], reported["rule"])
        assert (mutant["file"], violation) == (mutant["file"], wanted)
        actual = verdict.to_json(tape.time_type)
        for key in ("valid", "events", "records", "holdings", "frontier", "closed"):
            assert (mutant["file"], actual[key]) == (mutant["file"], reported[key])


def test_a_registered_type_round_trips_through_a_tape(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    register_complex()
    folder = tmp_path / "waves"
    folder.mkdir()
    types = EventTypes.of("u64", "(complex, string)")
    events = [Messages.of((3,), [(1 + 2j, "a"), (0j, "b")]), Progress.of([((0,), -1)])]
    data = b"".join(encode_event(types, event) for event in events)
    (folder / "worker-0.bin").write_bytes(data)
    given = Form.of_folder(folder, Format.TIMELY, time_type="u64", record_type="(Complex, string)")
    actual = find_recordings(folder, Format.TIMELY)
    assert import_recordings(spark, lake, "waves", actual, given).to_json()["records"] == 2
    tape = open_tape(lake, "waves")
    assert verify(spark, lake, tape, deep=True).valid
    stored = pl.read_delta(tape.paths.records)["data"].struct.field("f0").to_list()
    assert sorted(stored) == ["[0.0,0.0]", "[1.0,2.0]"]
    out = tmp_path / "out"
    export_recordings(spark, lake, tape, out, form_of(tape, Format.TIMELY), workers=[0])
    assert (out / "worker-0.bin").read_bytes() == data


def test_a_captured_stream_can_be_taken_elsewhere(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    from capstan.capture.run import capture

    stored = rows(range(30), step=HOUR / 2 + timedelta(microseconds=1))
    lay_in(tmp_path / "source", stored, files=2)
    capture(spark, lake, little_stream(tmp_path / "source"))
    tape = open_tape(lake, "little")
    out = tmp_path / "out"
    with pytest.raises(InvalidRequestError, match="CAP-FILE"):
        form_of(tape, Format.TIMELY)
    form = form_of(tape, Format.JSONL)
    done = export_recordings(spark, lake, tape, out, form, workers=[0, 2])
    assert [file.records for file in done.files] == [10, 10]
    with pytest.raises(InvalidRequestError, match="CAP-EXISTS"):
        export_recordings(spark, lake, tape, out, form, workers=[0])

    again = Form.of_folder(out, Format.JSONL)
    import_recordings(spark, lake, "again", find_recordings(out, Format.JSONL), again)
    copy = open_tape(lake, "again")
    verdicts = verify(spark, lake, copy, deep=True).workers
    was = verify(spark, lake, tape, workers=[0, 2]).workers
    assert [(v.valid, v.events, v.holdings) for v in verdicts] == [
        (v.valid, v.events, v.holdings) for v in was
    ]
    kept = pl.read_delta(copy.paths.records)["data"].struct.field("json").to_list()
    reported = [json.loads(text) for text in kept]
    # To the microsecond.
    assert sorted((row["id"], datetime.fromisoformat(row["at"])) for row in reported) == [
        (n, at) for n, _, at, *_ in stored if n % 3 in (0, 2)
    ]
    with pytest.raises(InvalidRequestError, match="CAP-EXISTS"):
        import_recordings(spark, lake, "little", find_recordings(out, Format.JSONL), again)
