"""Who ends a Spark session: whoever has started it."""

from __future__ import annotations

from pathlib import Path

import pytest

from capstan.api.workplace import Workplace


class Session:
    """A session that counts how often it was stopped."""

    stops = 0

    def __init__(self) -> None:
        self.sparkContext = self

    def stop(self) -> None:
        self.stops += 1


@pytest.mark.parametrize("started", [True, False])
def test_only_own_sessions_are_stopped_and_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, started: bool
) -> None:
    session = Session()
    opened = lambda _given, _lake: (session, started)  # noqa: E731
    monkeypatch.setattr("capstan.spark.guest_session.open_session", opened)
    with Workplace(tmp_path) as place:
        assert place.spark is session
        assert session.stops == 0
    place.close()
    assert session.stops == int(started)


def test_without_a_session_nothing_is_stopped(tmp_path: Path) -> None:
    Workplace(tmp_path).close()


def test_a_session_that_others_use_ends_with_the_last_of_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    session = Session()
    starts = iter((True, False, False))
    opened = lambda _given, _lake: (session, next(starts))  # noqa: E731
    monkeypatch.setattr("capstan.spark.guest_session.open_session", opened)
    first, second, third = (Workplace(tmp_path) for _ in range(3))
    assert first.spark is second.spark is third.spark
    first.close()
    third.close()
    assert session.stops == 0
    second.close()
    assert session.stops == 1
