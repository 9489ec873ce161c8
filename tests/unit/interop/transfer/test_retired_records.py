"""What needs records that were retired: refused before anything is written, and told what to do."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from capstan.audit import AuditScope
from capstan.audit import run as auditing
from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.errors import InvalidRequestError
from capstan.interop.kafka import export_topics
from capstan.interop.kafka.topic_layout import Topics
from capstan.interop.transfer import export_files
from capstan.interop.transfer.recording_format import Format
from capstan.storage.delta import delta
from capstan.storage.lake import Lake
from capstan.storage.ledger.region_json import region_text
from capstan.storage.ledger.retirements import retired_error
from capstan.storage.tape.tape import Tape, newest_cut, open_tape
from tests.support.jvmless_lake import FIRST, lay_tape

DAY = 86_400_000_000
SINCE = "2024-05-02T00:00:00.000000Z"
BOX = Box((None,), (FIRST + DAY,))


@pytest.fixture
def tape(tmp_path: Path) -> Tape:
    """A tape with records on two days, of which those of the first were retired."""
    lake = Lake.at(tmp_path / "lake")
    lay_tape(lake, "s", "ab", [(FIRST,), (FIRST + DAY,)], (FIRST + 2 * DAY,))
    tape = open_tape(lake, "s")
    row = {
        "stream": "s",
        "tape": str(delta.open_table(tape.paths.events).metadata().id),
        "at": datetime.now(UTC),
        "region": region_text(Region(BOX)),
        "cut": 0,
        "records": 2,
        "state": "done",
    }
    rows = pa.table({name: [value] for name, value in row.items()})
    deltalake.write_deltalake(lake.ledger("retired"), rows)
    return tape


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake.at(tmp_path / "lake")


class Sound:
    """A verification that has found nothing."""

    def raise_for_violations(self) -> None:
        """Find nothing."""


def refused(work: Any) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        work()
    assert caught.value.code == "CAP-RETIRED"
    assert f"needs records of stream s before {SINCE}" in caught.value.message
    return caught.value


def test_a_recording_is_not_exported_in_part_to_topics(
    lake: Lake, tape: Tape, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[object] = []
    monkeypatch.setattr(export_topics, "verify", lambda *_, **__: Sound())
    monkeypatch.setattr(export_topics, "_send", lambda *each: sent.append(each))
    spark, to = Any, Topics("127.0.0.1:1", "s")
    error = refused(
        lambda: export_topics.export_topics(
            spark,
            lake,
            tape,
            to,
            workers=[0, 1],
            cut=newest_cut(tape),  # type: ignore[arg-type]
        )
    )
    assert sent == []
    assert error.hint == (
        "this command needs the whole recording; `capstan replay s --into TABLE --since "
        f"{SINCE}` replays the remaining records"
    )


def test_a_recording_is_not_exported_in_part_to_files(
    lake: Lake, tape: Tape, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_files, "verify", lambda *_, **__: Sound())
    monkeypatch.setattr(export_files, "_require_events", lambda *_: None)
    form: Any = Format.JSONL
    error = refused(
        lambda: export_files.export_recordings(
            Any,
            lake,
            tape,
            tmp_path / "out",
            form,
            workers=[0],  # type: ignore[arg-type]
        )
    )
    assert not (tmp_path / "out").exists()
    # Exports choose no times.
    assert "leave out these times" not in error.hint
    assert f"--since {SINCE}` replays the remaining records" in error.hint


def test_an_audit_of_some_columns_says_which_options_it_has(
    tape: Tape, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = [pa.field("id", pa.int64())]
    payload: Any = type("Payload", (), {"fields": [*fields, *fields]})
    monkeypatch.setattr(auditing, "stored_payload", lambda *_: payload)
    monkeypatch.setattr(auditing, "common_fields", lambda *_: fields)
    nothing: Any = type("Nothing", (), {"columns": (), "schema": None})
    monkeypatch.setattr(auditing, "prepare", lambda *_: ())
    scope = AuditScope(nothing, tape, newest_cut(tape), {0: "a"}, Region(BOX))
    error = refused(lambda: auditing.audit_copy(scope, nothing, nothing, retired=[BOX]))
    assert error.hint == (
        f"audit all columns of the stream, or only later times (--against s --since {SINCE})"
    )


def test_who_says_nothing_else_is_told_to_leave_these_times_out(tape: Tape) -> None:
    assert retired_error(tape, BOX, "the replay").hint == (
        f"leave out these times (--since {SINCE}); rows published from them remain"
    )
