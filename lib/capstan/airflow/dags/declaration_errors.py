"""What is wrong in the declaration file: each mistake leaves out its own DAGs, and no others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from airflow.sdk import DAG

from capstan.airflow.dags import timetables
from capstan.airflow.dags.notifications import on_failure
from capstan.airflow.settings import Settings
from capstan.errors import InvalidRequestError


def require_none(setting: Settings) -> None:
    """Check that nothing is wrong in the declaration file: all that is, in one error.

    Raises:
        InvalidRequestError: `CAP-DECLARE`; Airflow shows it as the import error of the DAG file
            that asks.
    """
    found = list(mistakes(setting))
    if found:
        more = "".join(f"; {each.message}" for each in found[1:])
        raise InvalidRequestError(found[0].code, found[0].message + more, found[0].hint)


def mistakes(setting: Settings) -> Iterator[InvalidRequestError]:
    """What is wrong in declarations, and what Airflow cannot carry out of those that are right."""
    declared = setting.declarations
    yield from (each.error for each in declared.mistakes)
    for stream in declared.streams.values():
        schedule = partial(timetables.of_stream, setting, stream)
        yield from _of(setting, ("streams", stream.name, "notify"), stream.notify, schedule)
    for replay in declared.replays.values():
        schedule = partial(timetables.of_replay, setting, replay)
        yield from _of(setting, ("replays", replay.name, "notify"), replay.notify, schedule)


def _of(
    setting: Settings, place: tuple[str, ...], notify: Sequence[str], schedule: Callable[[], object]
) -> Iterator[InvalidRequestError]:
    for check in (schedule, lambda: on_failure(setting, notify, place)):
        try:
            check()
        except InvalidRequestError as error:
            yield error


def sound(build: Callable[[], DAG]) -> Iterator[DAG]:
    """The DAG of a declaration; none where Airflow cannot carry it out, which `mistakes` tells."""
    try:
        yield build()
    except InvalidRequestError as error:
        if error.code != "CAP-DECLARE":
            raise
