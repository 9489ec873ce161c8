"""The settings that are stored with a tape."""

from __future__ import annotations

import json

import pytest

from capstan.core.times import PRODUCT
from capstan.interop.timely import EventTypes
from capstan.storage.tape.settings import TapeSettings

KEYED = TapeSettings({"workers": {"by": "key", "columns": ["id"], "count": 2}}, {"late": "fail"})


def test_stored_settings_are_read_as_they_were_written() -> None:
    text = '{"fixed": {"workers": {"by": "key", "columns": ["id"], "count": 2}}, '
    text += '"free": {"late": "fail"}}'
    assert KEYED.to_text() == text
    assert TapeSettings.parse(text) == KEYED
    assert TapeSettings.parse("{}") == TapeSettings()


def test_another_number_of_workers_changes_nothing_else() -> None:
    more = KEYED.with_count(3)
    assert (KEYED.count, more.count) == (2, 3)
    assert json.loads(more.to_text()) == json.loads(KEYED.to_text().replace("2", "3"))


def test_a_recapture_lists_its_workers_and_has_none_by_key() -> None:
    recaptured = TapeSettings({"domain": "recapture", "workers": [0, 2], "count": 4})
    assert (recaptured.workers, recaptured.count, recaptured.time) == ({}, None, {})


@pytest.mark.parametrize(
    ("time_type", "expected"),
    [
        ("u64", False),
        ("Product<u64,Product<u64,i64>>", False),
        ("(u64)", False),
        ("(u64, u64)", True),
        ("Product<(u64, u64),u64>", True),
    ],
)
def test_pairs_that_were_imported_are_found_by_the_name_of_their_type(
    time_type: str, *, expected: bool
) -> None:
    types = EventTypes.of(time_type, "(u64, string)").to_json()
    for domain in ("import", "listen"):
        settings = TapeSettings({"domain": domain, "import": {**types, "format": "timely"}})
        assert settings.pairs == (types["time_type"] if expected else None)
    assert (EventTypes.of(time_type, "u64").time.order != PRODUCT) is expected
    assert TapeSettings({"domain": "epoch"}).pairs is None
    assert TapeSettings({"domain": "import", "import": {"minimum": 0}}).pairs is None
