"""Declared schedules as timetables, always named ones and in UTC.

A bare cron text would give runs whose data interval is empty.
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
"""When DAGs start that have no other start: their past is never caught up with by itself."""


def of_stream(setting: Settings, stream: Stream) -> BaseTimetable | None:
    """The timetable of a stream's captures; None without a schedule.

    Args:
        setting: Where the declaration is.
        stream: Its schedule is `@daily`, or a cron of five fields.

    Raises:
        InvalidRequestError: `CAP-DECLARE` when the schedule names no moment.
    """
    if stream.schedule is None:
        return None
    return _moments(setting, ("streams", stream.name, "schedule"), stream.schedule)


def of_replay(setting: Settings, replay: Replay) -> BaseTimetable | None:
    """The timetable of a replay: moments if it follows, else the intervals between moments.

    Raises:
        InvalidRequestError: `CAP-DECLARE` when the schedule names no moment, or the stream's times
            are no moments.
    """
    if replay.schedule is None:
        return None
    place = ("replays", replay.name, "schedule")
    if replay.follow is not None:
        return _moments(setting, place, replay.schedule)
    if isinstance(setting.declarations.stream(replay.stream).time, EpochTime):
        problem = f"times of {replay.stream} are epochs, and data intervals are moments"
        raise setting.misdeclared(place, problem)
    return _checked(setting, place, CronDataIntervalTimetable(replay.schedule, timezone="UTC"))


def daily() -> BaseTimetable:
    """The timetable of runs at each midnight."""
    return CronTriggerTimetable("0 0 * * *", timezone="UTC")


def _moments(setting: Settings, place: tuple[str, ...], schedule: str) -> BaseTimetable:
    return _checked(setting, place, CronTriggerTimetable(schedule, timezone="UTC"))


def _checked(
    setting: Settings,
    place: tuple[str, ...],
    timetable: CronDataIntervalTimetable | CronTriggerTimetable,
) -> BaseTimetable:
    try:
        timetable.validate()
        # The 31st of February is well written, and never comes.
        croniter(timetable.expression, BEGINNING).get_next()
    except (AirflowTimetableInvalid, CroniterError) as error:
        raise setting.misdeclared(place, f"is not a schedule: {error}") from None
    return timetable
