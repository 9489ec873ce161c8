"""The result of a replay: its name, its table at the published version, and a result from JSON."""

from __future__ import annotations

import json
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from capstan.api.notebook import shown
from capstan.errors import CapstanError
from capstan.replay.result import ReplayResult

NOTHING = {"run": None, "stream": None, "target_version": None, "unchanged": True}


@pytest.fixture
def replayed(tmp_path: Path) -> ReplayResult:
    path = str(tmp_path / "table")
    for values in ([1, 2], [3]):
        deltalake.write_deltalake(path, pa.table({"n": values}), mode="append")
    certificate = {
        "run": "table-1", "stream": "s", "cut": 4, "target": "table", "target_path": path,
        "target_version": 0, "published": True, "records": 2000,
    }  # fmt: skip
    return ReplayResult.from_json({**certificate, "unchanged": False})


def test_the_table_is_read_at_the_published_version(replayed: ReplayResult) -> None:
    assert replayed.name == "table-1"
    assert replayed.to_arrow()["n"].to_pylist() == [1, 2]


def test_json_of_a_result_is_read_as_the_same_result(replayed: ReplayResult) -> None:
    assert ReplayResult.from_json(json.loads(json.dumps(replayed.to_json()))) == replayed
    nothing = ReplayResult.from_json(NOTHING)
    assert nothing == ReplayResult(None, unchanged=True)
    assert (nothing.name, nothing.to_json()["unchanged"]) == ("", True)


def test_a_result_without_a_certificate_has_no_table() -> None:
    with pytest.raises(CapstanError):
        ReplayResult(None, unchanged=True).to_arrow()


def test_a_notebook_shows_the_certificate_of_a_result(replayed: ReplayResult) -> None:
    html = shown(replayed)._repr_html_()  # type: ignore[attr-defined]
    assert html.startswith("<table><caption>table-1: done</caption>")
    assert "<td>2,000</td>" in html
    nothing = shown(ReplayResult(None, unchanged=True))._repr_html_()  # type: ignore[attr-defined]
    assert "unchanged" in nothing
