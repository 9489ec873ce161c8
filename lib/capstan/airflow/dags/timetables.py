"""Timetables of declared schedules, in UTC.

A bare cron string would give runs with an empty data interval.
"""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import CronDataIntervalTimetable, CronTriggerTimetable
from airflow.sdk.bases.timetable import BaseTimetable
from airflow.sdk.exceptions import AirflowTimetableInvalid
from croniter import CroniterError, croniter

from capstan.airflow.settings import Settings
from capstan.core.config import EpochTime, Replay, Stream

BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
"""Default start date of DAGs; none of them catches up on its own."""


def of_stream(settings: Settings, stream: Stream) -> BaseTimetable | None:
    """The timetable of a stream's captures; None without a schedule."""
    if stream.schedule is None:
        return None
    return _points(settings, ("streams", stream.name, "schedule"), stream.schedule)


def of_replay(settings: Settings, replay: Replay) -> BaseTimetable | None:
    """The timetable of a replay: points in time if it follows, else data intervals."""
    if replay.schedule is None:
        return None
    declared_at = ("replays", replay.name, "schedule")
    if replay.follow is not None:
        return _points(settings, declared_at, replay.schedule)
    # Streams of one replay have times of one domain.
    first = replay.inputs[0]
    if isinstance(settings.declarations.stream(first).time, EpochTime):
        problem = f"needs data intervals, but the times of {first} are epochs"
        raise settings.misdeclared(declared_at, problem)
    return _checked(
        settings, declared_at, CronDataIntervalTimetable(replay.schedule, timezone="UTC")
    )


def daily() -> BaseTimetable:
    """The timetable of a run at each midnight."""
    return CronTriggerTimetable("0 0 * * *", timezone="UTC")


def _points(settings: Settings, declared_at: tuple[str, ...], schedule: str) -> BaseTimetable:
    return _checked(settings, declared_at, CronTriggerTimetable(schedule, timezone="UTC"))


def _checked(
    settings: Settings,
    declared_at: tuple[str, ...],
    timetable: CronDataIntervalTimetable | CronTriggerTimetable,
) -> BaseTimetable:
    try:
        timetable.validate()
        # The 31st of February is valid cron, but never comes.
        croniter(timetable.expression, BEGINNING).get_next()
    except (AirflowTimetableInvalid, CroniterError) as error:
        raise settings.misdeclared(declared_at, f"is not a schedule: {error}") from None
    return timetable
