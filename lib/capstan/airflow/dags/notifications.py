"""Who is told when a task fails: notifiers that declarations name, before the line that is last.

`notify: [my_alerts:ON_CALL]` names what a module of the DAG folder, or any other that can be
imported, has under a name: one of Airflow's notifiers, with its settings; a notifier class that
needs none; or any function of a task's context, whose `exception` says what went wrong. Those of
the variable `CAPSTAN_NOTIFY` are told of every task.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from airflow.sdk.bases.notifier import BaseNotifier

from capstan.airflow.operators.failures import say_last
from capstan.airflow.settings import Settings
from capstan.errors import InvalidRequestError

Callback = Callable[[Any], None]


def on_failure(
    setting: Settings, declared: Sequence[str] = (), place: Sequence[str] = ()
) -> list[Callback]:
    """The callbacks of a task that fails for good, the error's own line last.

    Args:
        setting: Where Capstan works; it names whom to tell of every task.
        declared: Whom to tell of this one: `package.module:name`.
        place: Where they are declared, for the message.

    Raises:
        InvalidRequestError: `CAP-DECLARE`, or `CAP-NOTIFY` for the variable, when one cannot be
            found or is nothing that can be told.
    """
    found: list[Callback] = []
    for name in (*setting.notify, *declared):
        try:
            told = _find(name)
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            problem = f"{name} cannot be told of a failure: {error}"
            if name in setting.notify:
                hint = "name package.module:name in CAPSTAN_NOTIFY"
                raise InvalidRequestError("CAP-NOTIFY", problem, hint) from None
            raise setting.misdeclared(place, problem) from None
        if told not in found:
            found.append(told)
    return [*found, say_last]


def of_chosen(setting: Settings) -> Callback:
    """A callback that tells those of the declared replay that a run was asked to be one of."""

    def tell(context: Any) -> None:
        chosen = str((context.get("params") or {}).get("replay") or "")
        replay = setting.declarations.replays.get(chosen)
        for name in replay.notify if replay is not None else ():
            if name not in setting.notify:
                _find(name)(context)

    return tell


def of_concerned(setting: Settings) -> Callback:
    """A callback that tells those of the streams and the declared replays that a failure names.

    A task over all of them knows whom to tell once it has failed: of a stream that breaks a rule,
    is damaged or stands still, of a table that fails its audit, of a backfill that ended early.
    """

    def tell(context: Any) -> None:
        about = getattr(context.get("exception"), "about", {})
        for name in dict.fromkeys(_concerned(setting, about)):
            if name not in setting.notify:
                _find(name)(context)

    return tell


def _concerned(setting: Settings, about: Mapping[str, Any]) -> Iterator[str]:
    """Whom to tell of a failure, by what is known of it."""
    from capstan.replay.planning.plan import target_path
    from capstan.storage.lake import Lake

    declared, lake = setting.declarations, Lake.at(setting.lake)
    streams = {about.get("stream"), *about.get("concerned", ())}
    for name in ("failed", "violations"):
        streams.update(each["stream"] for each in about.get(name, ()))
    streams.update(each["stream"] for each in about.get("tables", ()) if each["damaged"])
    # As the ledgers have them, by path.
    tables = {each["target"] for each in about.get("audits", ()) if each.get("passed") is False}
    replays = {each["replay"] for each in about.get("backfills", ()) if "error" in each}
    for stream in declared.streams.values():
        if stream.name in streams:
            yield from stream.notify
    for replay in declared.replays.values():
        if replay.name in replays or target_path(lake, declared, replay.target)[0] in tables:
            yield from replay.notify


def _find(name: str) -> Callback:
    module, _, inside = name.partition(":")
    found = attrgetter(inside)(importlib.import_module(module))
    # Called with a context, a class would only make a notifier, and tell nobody.
    if isinstance(found, type) and issubclass(found, BaseNotifier):
        found = found()
    if isinstance(found, type) or not callable(found):
        raise TypeError("it is neither a notifier nor a function")
    return found  # type: ignore[no-any-return]
