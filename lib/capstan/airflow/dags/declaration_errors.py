"""What is wrong in the declaration file: each mistake leaves out its own DAGs, and no others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from airflow.sdk import DAG

from capstan.airflow.dags import timetables as schedules
from capstan.airflow.dags.notifications import on_failure
from capstan.airflow.settings import Setting
from capstan.errors import BadRequest


def require_none(setting: Setting) -> None:
    """Check that nothing is wrong in the declaration file: all that is, in one error.

    Raises:
        BadRequest: `CAP-DECLARE`; Airflow shows it as the import error of the DAG file that asks.
    """
    found = list(mistakes(setting))
    if found:
        more = "".join(f"; {each.message}" for each in found[1:])
        raise BadRequest(found[0].code, found[0].message + more, found[0].hint)


def mistakes(setting: Setting) -> Iterator[BadRequest]:
    """What is wrong in declarations, and what Airflow cannot carry out of those that are right."""
    declared = setting.declarations
    yield from (each.error for each in declared.mistakes)
    for stream in declared.streams.values():
        schedule = partial(schedules.of_stream, setting, stream)
        yield from _of(setting, ("streams", stream.name, "notify"), stream.notify, schedule)
    for replay in declared.replays.values():
        schedule = partial(schedules.of_replay, setting, replay)
        yield from _of(setting, ("replays", replay.name, "notify"), replay.notify, schedule)


def _of(
    setting: Setting, place: tuple[str, ...], notify: Sequence[str], schedule: Callable[[], object]
) -> Iterator[BadRequest]:
    for check in (schedule, lambda: on_failure(setting, notify, place)):
        try:
            check()
        except BadRequest as error:
            yield error


def sound(build: Callable[[], DAG]) -> Iterator[DAG]:
    """The DAG of a declaration; none where Airflow cannot carry it out, which `mistakes` tells."""
    try:
        yield build()
    except BadRequest as error:
        if error.code != "CAP-DECLARE":
            raise
