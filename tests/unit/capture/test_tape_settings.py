"""The configuration that is stored with a tape."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from capstan.capture.tape_settings import settings_of
from capstan.core.config import EventTime, TimeUnit
from tests.support.sample_streams import little_stream


def test_a_unit_is_stored_only_if_it_is_declared() -> None:
    stream = little_stream(Path("/data"))
    assert isinstance(stream.time, EventTime)
    plain = settings_of(stream)["fixed"]
    counted = settings_of(replace(stream, time=replace(stream.time, unit=TimeUnit.SECONDS)))
    assert isinstance(plain, dict)
    # Tapes from before units have none, and are not to be refused.
    assert "unit" not in plain["time"]
    assert counted["fixed"] == {**plain, "time": {**plain["time"], "unit": "s"}}
