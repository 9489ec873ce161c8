"""Declared schedules as timetables, always named ones and in UTC.

A bare cron text would give runs whose data interval is empty.
"""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import CronDataIntervalTimetable, CronTriggerTimetable
from airflow.sdk.bases.timetable import BaseTimetable
from airflow.sdk.exceptions import AirflowTimetableInvalid
from croniter import CroniterError, croniter

from capstan.airflow.setting import Setting

BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
"""When DAGs start that have no other start: their past is never caught up with by itself."""


def moments(setting: Setting, place: tuple[str, ...], schedule: str) -> BaseTimetable:
    """The timetable of runs at moments.

    Args:
        setting: Where the declaration is.
        place: The key of the schedule in it.
        schedule: `@daily`, or a cron of five fields.

    Raises:
        BadRequest: `CAP-DECLARE` when the schedule names no moment.
    """
    return _checked(setting, place, CronTriggerTimetable(schedule, timezone="UTC"))


def daily() -> BaseTimetable:
    """The timetable of runs at each midnight."""
    return CronTriggerTimetable("0 0 * * *", timezone="UTC")


def intervals(setting: Setting, place: tuple[str, ...], schedule: str) -> BaseTimetable:
    """The timetable of runs over the intervals between moments; as `moments`."""
    return _checked(setting, place, CronDataIntervalTimetable(schedule, timezone="UTC"))


def _checked(
    setting: Setting,
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
