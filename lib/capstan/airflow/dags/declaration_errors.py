"""Errors in the declaration file: each removes only the DAGs of its own declaration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from airflow.sdk import DAG

from capstan.airflow.dags import timetables
from capstan.airflow.dags.notifications import on_failure
from capstan.airflow.settings import Settings
from capstan.errors import InvalidRequestError


def require_none(settings: Settings) -> None:
    """Check the declaration file, and raise all its errors as one."""
    errors = list(mistakes(settings))
    if errors:
        more = "".join(f"; {error.message}" for error in errors[1:])
        raise InvalidRequestError(errors[0].code, errors[0].message + more, errors[0].hint)


def mistakes(settings: Settings) -> Iterator[InvalidRequestError]:
    """Errors in declarations, and valid declarations that Airflow cannot schedule or notify."""
    declared = settings.declarations
    yield from (mistake.error for mistake in declared.mistakes)
    for stream in declared.streams.values():
        schedule = partial(timetables.of_stream, settings, stream)
        yield from _errors(settings, ("streams", stream.name, "notify"), stream.notify, schedule)
    for replay in declared.replays.values():
        schedule = partial(timetables.of_replay, settings, replay)
        yield from _errors(settings, ("replays", replay.name, "notify"), replay.notify, schedule)


def _errors(
    settings: Settings,
    notify_at: tuple[str, ...],
    notify: Sequence[str],
    schedule: Callable[[], object],
) -> Iterator[InvalidRequestError]:
    for check in (schedule, lambda: on_failure(settings, notify, notify_at)):
        try:
            check()
        except InvalidRequestError as error:
            yield error


def sound(build: Callable[[], DAG]) -> Iterator[DAG]:
    """The DAG of a declaration; none if Airflow cannot run it, which `mistakes` reports."""
    try:
        yield build()
    except InvalidRequestError as error:
        if error.code != "CAP-DECLARE":
            raise
