"""Who is told when a task fails: notifiers that declarations name, before the line that is last.

`notify: [my_alerts:ON_CALL]` names what a module of the DAG folder, or any other that can be
imported, has under a name: one of Airflow's notifiers, with its settings; a notifier class that
needs none; or any function of a task's context, whose `exception` says what went wrong. Those of
the variable `CAPSTAN_NOTIFY` are told of every task.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from airflow.sdk.bases.notifier import BaseNotifier

from capstan.airflow.failing import say_last
from capstan.airflow.setting import Setting
from capstan.errors import BadRequest

Callback = Callable[[Any], None]


def on_failure(
    setting: Setting, declared: Sequence[str] = (), place: Sequence[str] = ()
) -> list[Callback]:
    """The callbacks of a task that fails for good, the error's own line last.

    Args:
        setting: Where Capstan works; it names whom to tell of every task.
        declared: Whom to tell of this one: `package.module:name`.
        place: Where they are declared, for the message.

    Raises:
        BadRequest: `CAP-DECLARE`, or `CAP-NOTIFY` for the variable, when one cannot be found or is
            nothing that can be told.
    """
    found: list[Callback] = []
    for name in (*setting.notify, *declared):
        try:
            told = _find(name)
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            problem = f"{name} cannot be told of a failure: {error}"
            if name in setting.notify:
                hint = "name package.module:name in CAPSTAN_NOTIFY"
                raise BadRequest("CAP-NOTIFY", problem, hint) from None
            raise setting.misdeclared(place, problem) from None
        if told not in found:
            found.append(told)
    return [*found, say_last]


def of_chosen(setting: Setting) -> Callback:
    """A callback that tells those of the declared replay that a run was asked to be one of."""

    def tell(context: Any) -> None:
        chosen = str((context.get("params") or {}).get("replay") or "")
        replay = setting.declarations.replays.get(chosen)
        for name in replay.notify if replay is not None else ():
            if name not in setting.notify:
                _find(name)(context)

    return tell


def _find(name: str) -> Callback:
    module, _, inside = name.partition(":")
    found = attrgetter(inside)(importlib.import_module(module))
    # Called with a context, a class would only make a notifier, and tell nobody.
    if isinstance(found, type) and issubclass(found, BaseNotifier):
        found = found()
    if isinstance(found, type) or not callable(found):
        raise TypeError("it is neither a notifier nor a function")
    return found  # type: ignore[no-any-return]
