"""Files of a tape that are gone, cut short or rubbish: named, and nothing is written."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from capstan.errors import CapstanError, SystemFailureError
from capstan.errors.translation import to_capstan_error
from capstan.storage.lake import Lake
from capstan.storage.ledger.runs import read_histories
from capstan.storage.tape.tape import open_tape
from capstan.verify import verify
from tests.support import lake_contents, small_stream
from tests.support.driver_actions import act

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    small_stream.feed(folder)
    return folder


@pytest.fixture(scope="module")
def captured(spark, source, tmp_path_factory):
    lake = Lake.at(tmp_path_factory.mktemp("captured") / "lake")
    act(spark, "capture", {"lake": lake.root, "source": str(source)})
    return lake


@pytest.fixture
def damaged(captured, tmp_path):
    """A copy of the lake, to be damaged."""
    shutil.copytree(captured.root, tmp_path / "lake")
    return Lake.at(tmp_path / "lake")


def error_of(work) -> CapstanError:
    with pytest.raises(Exception) as caught:
        work()
    return to_capstan_error(caught.value)


def deeply(spark, lake):
    return verify(spark, lake, open_tape(lake, small_stream.NAME), deep=True)


def replay(spark, lake, source):
    request = small_stream.REQUESTS["staged"]
    return act(spark, "replay", {"lake": lake.root, "source": str(source), "request": request})


def files(lake, table):
    """The files of a table in the order in which they were written, of a copy too."""
    actual = Path(f"{lake.stream(small_stream.NAME).root}/{table}").glob("*.parquet")
    return sorted(actual, key=lambda file: file.stat().st_mtime_ns)


def commits(lake, table):
    return sorted(Path(f"{lake.stream(small_stream.NAME).root}/{table}/_delta_log").glob("0*.json"))


def require_nothing_written(lake) -> None:
    assert lake_contents.rows(lake.table("staged")) == []


def test_all_that_is_gone_or_short_is_named_at_once(spark, damaged, source) -> None:
    first, second, *_ = files(damaged, "records")
    first.unlink()
    whole = second.stat().st_size
    second.write_bytes(second.read_bytes()[:200])
    event = files(damaged, "events")[-1]
    event.write_bytes(b"")
    actual = error_of(lambda: deeply(spark, damaged))
    assert isinstance(actual, SystemFailureError)
    assert actual.code == "CAP-DAMAGED"
    named = {field["path"]: (field["written"], field["there"]) for field in actual.fields["files"]}
    assert named.keys() == {str(first), str(second), str(event)}
    assert named[str(second)] == (whole, 200)
    assert named[str(first)][1] is None
    assert str(event) in actual.message
    assert "2 more files" in actual.message
    assert json.loads(json.dumps(actual.to_json()))["files"] == actual.fields["files"]

    # What reads only the index does not see the payload's damage, and says what it stumbles over.
    assert error_of(lambda: replay(spark, damaged, source)).code == "CAP-DAMAGED"
    require_nothing_written(damaged)


def test_a_file_of_the_right_length_that_cannot_be_read_is_named(spark, damaged, source) -> None:
    # The first one: it has rows that are played.
    file = files(damaged, "records")[0]
    there = bytearray(file.read_bytes())
    there[30:90] = bytes(value ^ 0xFF for value in there[30:90])
    file.write_bytes(bytes(there))
    for work in (deeply, lambda *at: replay(*at, source)):
        actual = error_of(lambda work=work: work(spark, damaged))
        assert (actual.code, actual.fields["path"]) == ("CAP-DAMAGED", str(file))
    require_nothing_written(damaged)
    # What Spark raised is a stack of Java; the ledger keeps what it stands for.
    [run] = read_histories(damaged).values()
    assert run.last.detail == actual.to_json()


@pytest.mark.parametrize("table", ["events", "records"])
@pytest.mark.parametrize("how", ["torn", "hole"])
def test_a_log_that_lacks_something_is_named(spark, damaged, source, table, how) -> None:
    log = commits(damaged, table)
    if how == "torn":
        log[-1].write_bytes(log[-1].read_bytes()[:100])
    else:
        log[1].unlink()
    for work in (deeply, lambda *at: replay(*at, source)):
        actual = error_of(lambda work=work: work(spark, damaged))
        assert actual.code == "CAP-DAMAGED"
        assert "_delta_log" in actual.hint
        assert f"/{table}" in str(actual)
    require_nothing_written(damaged)


def test_put_back_it_is_as_before(spark, damaged, source, tmp_path) -> None:
    there = files(damaged, "records")
    kept = [file.rename(tmp_path / file.name) for file in there]
    assert error_of(lambda: replay(spark, damaged, source)).fields["path"] in map(str, there)
    for file, copy in zip(there, kept, strict=True):
        copy.rename(file)
    assert deeply(spark, damaged).valid
    # The attempt that broke holds nothing against the next one.
    assert not replay(spark, damaged, source)["unchanged"]
    assert lake_contents.rows(damaged.table("staged"))


def test_a_truncated_source_file_is_named_and_skipped(spark, captured, source, tmp_path) -> None:
    shutil.copytree(source, tmp_path / "source")
    lake = Lake.at(tmp_path / "lake")
    file = tmp_path / "source" / "part-2.parquet"
    whole, at = file.read_bytes(), file.stat().st_mtime
    given = {"lake": lake.root, "source": str(tmp_path / "source")}
    # The last one lacks the end, where the footer is; the other ends amid its rows, and has one.
    for short in (whole[: len(whole) // 2], whole[:400] + whole[500:]):
        file.write_bytes(short)
        os.utime(file, (at, at))
        actual = error_of(lambda: act(spark, "capture", given))
        assert isinstance(actual, SystemFailureError)
        assert (actual.code, actual.fields["path"]) == ("CAP-DAMAGED", str(file))
        assert "of the source" in actual.message
        assert "run again" in actual.hint
        taken = lake_contents.tape(lake)
        assert {json.loads(row)["batch"] for row in taken["records"] + taken["events"]} == {0, 1}
        assert deeply(spark, lake).valid

    file.write_bytes(whole)
    os.utime(file, (at, at))
    act(spark, "capture", given)
    actual = lake_contents.without_files(lake_contents.tape(lake))
    assert actual == lake_contents.without_files(lake_contents.tape(captured))
