"""Errors in the declaration file: each removes only the DAGs of its own declaration."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from airflow.sdk import DAG

from capstan.airflow.assets import gone_asset, table_asset
from capstan.airflow.dags import timetables
from capstan.airflow.dags.notifications import on_failure
from capstan.airflow.settings import Settings
from capstan.airflow.tasks.partitions import HAS_PARTITIONS, NEEDED
from capstan.core.config import Replay, Stream
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
    every: list[Stream | Replay] = [*declared.streams.values(), *declared.replays.values()]
    for each in every:
        for check in (timetables.of_declared, on_failure, require_keys):
            try:
                check(settings, each)
            except InvalidRequestError as error:
                yield error


def require_keys(settings: Settings, declared: Stream | Replay) -> None:
    """Check that this Airflow takes partition keys, if there are partitions, of one replay each."""
    if not declared.partitions:
        return
    if not HAS_PARTITIONS:
        raise settings.misdeclared(declared, "partitions", NEEDED)
    if isinstance(declared, Replay):
        # A key says that all of an interval is there.
        keyed = _keyed(settings, declared)
        other = next(
            each
            for each in settings.declarations.replays.values()
            if each.partitions and keyed & _keyed(settings, each)
        )
        if other != declared:
            problem = f"are those of replay {other.name}, whose table has the same asset"
            raise settings.misdeclared(declared, "partitions", problem)


def _keyed(settings: Settings, replay: Replay) -> set[str]:
    """The URIs of the assets whose events have its intervals as keys."""
    table = table_asset(replay.target, settings.declarations)
    return {table.uri, gone_asset(replay.target).uri}


def sound(build: Callable[[], DAG]) -> Iterator[DAG]:
    """The DAG of a declaration; none if Airflow cannot run it, which `mistakes` reports."""
    try:
        yield build()
    except InvalidRequestError as error:
        if error.code != "CAP-DECLARE":
            raise
