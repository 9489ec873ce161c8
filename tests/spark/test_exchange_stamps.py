"""Recordings of timely 0.32 onto tapes and off them, as far as their messages have one time."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from capstan.cli import main
from capstan.core.protocol import Messages, Progress, Release
from capstan.errors import InvalidRequestError
from capstan.interop.timely import EventTypes, connect, encode_event
from capstan.interop.transfer.export_files import export_recordings, form_of
from capstan.interop.transfer.import_files import ImportResult, import_recordings
from capstan.interop.transfer.listen import ListenRequest, listen
from capstan.interop.transfer.recording_format import Form, Format, find_recordings
from capstan.interop.transfer.serve import Address, serve
from capstan.storage.lake import is_table
from capstan.storage.tape import index
from capstan.storage.tape.tape import newest_cut, open_tape
from capstan.telemetry import instrumentation
from capstan.verify import verify
from tests.support.socket_receivers import receivers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from capstan.storage.lake import Lake
    from capstan.storage.tape.tape import Tape

CONFORMANCE = Path(__file__).parent.parent / "conformance"
TIMELY = CONFORMANCE / "timely032"


def put(
    spark: SparkSession, lake: Lake, name: str, folder: Path, form: Format, **options: str
) -> ImportResult:
    given = Form.of_folder(folder, form, **options)
    return import_recordings(spark, lake, name, find_recordings(folder, form), given)


def exported(
    spark: SparkSession, lake: Lake, tape: Tape, out: Path, form: Form
) -> dict[str, bytes]:
    workers = index.worker_labels(tape, newest_cut(tape))
    export_recordings(spark, lake, tape, out, form, workers=workers)
    return {path.name: path.read_bytes() for path in out.glob("worker-*")}


def files(folder: Path, form: Format) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob(f"worker-?{form.suffix}")}


@pytest.mark.parametrize("form", Format)
def test_one_element_comes_out_as_it_came_in(
    spark: SparkSession, lake: Lake, tmp_path: Path, form: Format
) -> None:
    case = "g0_strings_w3"
    done = put(spark, lake, "new", TIMELY / case, form)
    assert done.to_json()["timely"] == {"release": "0.32", "assumed": True}
    tape = open_tape(lake, "new")
    assert tape.settings.fixed["import"]["timely"] == "0.32"
    verify(spark, lake, tape, deep=True).raise_for_violations()
    # Declaring what was assumed is the same import.
    assert put(spark, lake, "new", TIMELY / case, form, timely="0.32").unchanged
    other = Format.JSONL if form is Format.TIMELY else Format.TIMELY
    for written in (form, other):
        out = tmp_path / f"out-{written}"
        actual = exported(spark, lake, tape, out, form_of(tape, written))
        assert actual == files(TIMELY / case, written)
        assert json.loads((out / "case.json").read_text())["timely"] == "0.32"
        # The bytes of 0.31: those that the former release wrote.
        out = tmp_path / f"old-{written}"
        actual = exported(spark, lake, tape, out, form_of(tape, written, timely="0.31"))
        assert actual == files(CONFORMANCE / "timely" / case, written)
        assert "timely" not in json.loads((out / "case.json").read_text())


def test_a_tape_of_0_31_states_no_release(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    folder = CONFORMANCE / "timely" / "a0_book_w5"
    done = put(spark, lake, "old", folder, Format.TIMELY)
    assert done.to_json()["timely"] == {"release": "0.31", "assumed": True}
    tape = open_tape(lake, "old")
    assert "timely" not in tape.settings.fixed["import"]
    form = form_of(tape, Format.TIMELY, timely="0.32")
    upgraded = TIMELY / "a0_book_w5"
    assert exported(spark, lake, tape, tmp_path / "out", form) == files(upgraded, Format.TIMELY)


@pytest.mark.parametrize("case", ["s1_leave_w2", "s7_unstamped_w2"])
@pytest.mark.parametrize("form", Format)
def test_stamps_that_a_tape_does_not_hold_are_refused(
    spark: SparkSession, lake: Lake, case: str, form: Format
) -> None:
    with pytest.raises(InvalidRequestError, match="a tape holds messages under one") as caught:
        put(spark, lake, case, TIMELY / case, form)
    assert caught.value.code == "CAP-STAMP"
    assert not is_table(lake.stream(case).events)


def test_pairs_are_refused_and_those_that_were_not_are_named(
    spark: SparkSession,
    lake: Lake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    types = EventTypes.of("(u64,u64)", "u64")
    event = Progress.of([((0, 5), 1)])
    (tmp_path / "worker-0.bin").write_bytes(encode_event(types, event))
    (tmp_path / "case.json").write_text(json.dumps(types.to_json()))
    with pytest.raises(InvalidRequestError, match="first part of a pair") as caught:
        put(spark, lake, "pairs", tmp_path, Format.TIMELY)
    assert caught.value.code == "CAP-TIME-TYPE"
    with pytest.raises(InvalidRequestError, match="first part of a pair"):
        ListenRequest("pairs", 1, Form.of_folder(tmp_path, Format.TIMELY), 0)
    # As an earlier version imported them.
    monkeypatch.setattr(Form, "require_tape", lambda form: None)
    put(spark, lake, "pairs", tmp_path, Format.TIMELY)
    result = verify(spark, lake, open_tape(lake, "pairs"))
    assert result.to_json()["pairs"] == "(u64, u64)"
    assert main(["--lake", lake.root, "verify", "pairs"]) == 0
    assert "its times are (u64, u64), which the tape wrongly orders" in capsys.readouterr().out


def test_sockets_in_the_form_of_0_32(spark: SparkSession, lake: Lake) -> None:
    case = "g0_strings_w3"
    sent = files(TIMELY / case, Format.TIMELY)
    put(spark, lake, "sent", TIMELY / case, Format.TIMELY)
    tape = open_tape(lake, "sent")
    with receivers(len(sent)) as (port, got):
        workers = tuple(index.worker_labels(tape, newest_cut(tape)))
        address = Address("127.0.0.1", port)
        serve(spark, lake, tape, form_of(tape, Format.TIMELY), address, workers=workers)
    assert [bytes(item) for item in got] == [sent[name] for name in sorted(sent)]


@pytest.mark.parametrize(
    ("event", "release", "words"),
    [
        (Messages.under([(0,), (1,)], ["x"]), Release.V032, "a stamp of 2 elements: 0, 1"),
        (Messages.under([], ["x"]), Release.V032, "a stamp without elements"),
        # A sender of the other release.
        (Messages.of((1,), ["x"]), Release.V031, "read as timely 0.32; it fits timely 0.31"),
        (Messages.of((0,), ["x"]), Release.V031, "a stamp without elements"),
    ],
)
def test_a_listener_takes_one_element(
    spark: SparkSession, lake: Lake, event: Messages, release: Release, words: str
) -> None:
    form = Form.from_options(
        Format.TIMELY, time_type="u64", record_type="string", timely=Release.V032
    )
    request = ListenRequest("heard", 1, form, 0, every=0.2)
    sound = Messages.of((0,), ["a"])

    def send(point: str, facts: dict[str, object]) -> None:
        if point == "listen.ready":
            ports = facts["ports"]
            threading.Thread(target=sender, args=(ports[0],), daemon=True).start()  # type: ignore[index]

    def sender(port: int) -> None:
        assert form.types is not None
        with connect("127.0.0.1", port, form.encoding(0)) as writer:
            writer.push(sound)
            writer.flush()
            writer._sink.write(encode_event(form.types, event, release))

    with instrumentation.subscribe(send):
        actual = listen(spark, lake, request)
    assert (actual.events, actual.records, actual.refused) == (1, 1, (0,))
    assert words in actual.faults[0]
