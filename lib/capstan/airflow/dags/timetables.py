"""Timetables of declared schedules, in UTC.

A bare cron string would give runs with an empty data interval.
"""

from __future__ import annotations

from datetime import UTC, datetime

import airflow.sdk
from airflow.sdk import Asset, CronDataIntervalTimetable, CronTriggerTimetable
from airflow.sdk.bases.timetable import BaseTimetable
from airflow.sdk.exceptions import AirflowTimetableInvalid
from croniter import CroniterError, croniter

from capstan.airflow.settings import Settings
from capstan.airflow.tasks.partitions import HAS_PARTITIONS
from capstan.core.config import EpochTime, Replay, Stream

BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
"""Default start date of DAGs; none of them catches up on its own."""


def of_declared(settings: Settings, declared: Stream | Replay) -> BaseTimetable | None:
    """The timetable of a stream's captures or of a replay; None without a schedule.

    A replay that does not follow has data intervals, all others points in time.
    """
    if declared.schedule is None:
        return None
    kind: type[CronDataIntervalTimetable | CronTriggerTimetable] = CronTriggerTimetable
    if isinstance(declared, Replay) and declared.follow is None:
        kind = CronDataIntervalTimetable
        # Streams of one replay have times of one domain.
        first = declared.inputs[0]
        if isinstance(settings.declarations.stream(first).time, EpochTime):
            problem = f"needs data intervals, but the times of {first} are epochs"
            raise settings.misdeclared(declared, "schedule", problem)
    timetable = kind(declared.schedule, timezone="UTC")
    try:
        timetable.validate()
        # The 31st of February is valid cron, but never comes.
        croniter(timetable.expression, BEGINNING).get_next()
    except (AirflowTimetableInvalid, CroniterError) as error:
        problem = f"is not a schedule: {error}"
        raise settings.misdeclared(declared, "schedule", problem) from None
    return timetable


def by_hand_or_key() -> BaseTimetable | None:
    """The timetable of runs that are triggered, with a partition key where Airflow takes one."""
    return airflow.sdk.PartitionedAtRuntime() if HAS_PARTITIONS else None


def daily() -> BaseTimetable:
    """The timetable of a run at each midnight."""
    return CronTriggerTimetable("0 0 * * *", timezone="UTC")


def daily_or(asset: Asset) -> BaseTimetable:
    """The timetable of a run at each midnight, and after each event of an asset without a key."""
    return airflow.sdk.AssetOrTimeSchedule(timetable=daily(), assets=asset)


def quarter_hourly() -> BaseTimetable:
    """The timetable of a run at each quarter of an hour."""
    return CronTriggerTimetable("*/15 * * * *", timezone="UTC")
