"""The configuration that is stored with a tape."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from capstan.capture.query.tape_settings import settings_of
from capstan.core.config import EventTime, Source
from capstan.core.config.models import TimeUnit
from tests.support.sample_streams import little_stream


def test_a_unit_is_stored_only_if_it_is_declared() -> None:
    stream = little_stream(Path("/data"))
    assert isinstance(stream.time, EventTime)
    plain = settings_of(stream).fixed
    counted = settings_of(replace(stream, time=replace(stream.time, unit=TimeUnit.SECONDS)))
    # Tapes from before units have none, and are not to be refused.
    assert "unit" not in plain["time"]
    assert counted.fixed == {**plain, "time": {**plain["time"], "unit": "s"}}


def test_a_selection_is_stored_as_a_hash_without_layout() -> None:
    stream = little_stream(Path("/data"))
    free = settings_of(stream).free
    assert "select" not in free

    def stored(select: str, where: str | None = None) -> object:
        source = Source(format="kafka", select=(select,), where=where)
        return settings_of(replace(stream, source=source)).free["select"]

    assert stored("a + b") == stored(" a  +  b -- their sum")
    assert len({stored("a"), stored("b"), stored("a", "b"), stored("A")}) == 4
