"""The settings that are stored with a tape."""

from __future__ import annotations

import json

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
