"""Notifications of failures, and of what has come to need a person.

`notify: [my_alerts:ON_CALL]` names an object of a module in the DAG folder, or of any importable
module: an Airflow notifier with its settings; a notifier class that needs none; or a function of
the task's context, whose `exception` is the failure, or the error `CAP-ATTENTION` that lists what
needs a person. Notifiers in `CAPSTAN_NOTIFY` apply to every task. Those of a failure are called
before the error's last line.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from airflow.sdk.bases.notifier import BaseNotifier

from capstan.airflow.settings import Settings
from capstan.airflow.tasks.failures import failure, log_error_last
from capstan.core.config import Replay, Stream, split_streams
from capstan.errors import InvalidRequestError

if TYPE_CHECKING:
    from capstan.reporting.attention.items import AttentionItem

Callback = Callable[[Any], None]

_log = logging.getLogger(__name__)


def on_failure(settings: Settings, declared: Stream | Replay | None = None) -> list[Callback]:
    """The callbacks of a task of some declaration that fails for good."""
    callbacks: list[Callback] = []
    for name in (*settings.notify, *(declared.notify if declared is not None else ())):
        try:
            callback = _find(name)
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            problem = f"{name} cannot be notified of failures: {error}"
            if declared is None or name in settings.notify:
                hint = "name package.module:name in CAPSTAN_NOTIFY"
                raise InvalidRequestError("CAP-NOTIFY", problem, hint) from None
            raise settings.misdeclared(declared, "notify", problem) from None
        if callback not in callbacks:
            callbacks.append(callback)
    return [*callbacks, log_error_last]


def of_chosen(settings: Settings) -> Callback:
    """A callback that calls the notifiers of the declared replay that a run's form names."""

    def notify(context: Any) -> None:
        chosen = str((context.get("params") or {}).get("replay") or "")
        replay = settings.declarations.replays.get(chosen)
        for name in replay.notify if replay is not None else ():
            if name not in settings.notify:
                _find(name)(context)

    return notify


def of_concerned(settings: Settings) -> Callback:
    """A callback that calls the notifiers of the streams and replays that a failure names."""
    # A task that covers all declarations knows them only once it has failed: a stream that breaks a
    # rule, is damaged or does not move; a table that fails its audit; a backfill that ended early.

    def notify(context: Any) -> None:
        about = getattr(context.get("exception"), "about", {})
        for name in dict.fromkeys(_concerned(settings, about)):
            if name not in settings.notify:
                _find(name)(context)

    return notify


def tell(settings: Settings, context: Any, items: Sequence[AttentionItem]) -> None:
    """Call each notifier once with those of some entries that concern its streams and replays.

    One that raises an error is logged, and does not keep the others from being called.
    """
    # Not at the top: parsing a DAG file should not import table readers.
    from capstan.reporting.attention.items import needs_attention

    by_notifier: dict[str, list[AttentionItem]] = {}
    for item in items:
        for name in dict.fromkeys((*settings.notify, *_notified(settings, item))):
            by_notifier.setdefault(name, []).append(item)
    for name, concerning in by_notifier.items():
        error = needs_attention(concerning, len(concerning))
        told = failure(error.exit_code, error.to_json())
        try:
            _find(name)({**context, "exception": told})
        except Exception:
            _log.exception("%s could not be notified", name)


def _notified(settings: Settings, item: AttentionItem) -> Iterator[str]:
    """The notifiers of the streams and the replay that an entry concerns."""
    declared = settings.declarations
    for name in split_streams(item.stream):
        if name in declared.streams:
            yield from declared.streams[name].notify
    if item.replay in declared.replays:
        yield from declared.replays[item.replay].notify


def _concerned(settings: Settings, about: Mapping[str, Any]) -> Iterator[str]:
    """The notifiers of a failure, from the facts of its error."""
    from capstan.replay.planning.target_places import target_path
    from capstan.storage.lake import Lake

    declared, lake = settings.declarations, Lake.at(settings.lake)
    streams = {about.get("stream"), *about.get("concerned", ())}
    for name in ("failed", "violations"):
        streams.update(error["stream"] for error in about.get(name, ()))
    streams.update(table["stream"] for table in about.get("tables", ()) if table["damaged"])
    streams = {name for text in streams if text for name in split_streams(str(text))}
    # By path, as in the ledgers.
    tables = {a["target"] for a in about.get("audits", ()) if a.get("passed") is False}
    replays = {entry["replay"] for entry in about.get("backfills", ()) if "error" in entry}
    for stream in declared.streams.values():
        if stream.name in streams:
            yield from stream.notify
    for replay in declared.replays.values():
        if replay.name in replays or target_path(lake, declared, replay.target)[0] in tables:
            yield from replay.notify


def _find(name: str) -> Callback:
    module, _, attribute = name.partition(":")
    notifier = attrgetter(attribute)(importlib.import_module(module))
    # Called with a context, a class would only create a notifier, and notify nobody.
    if isinstance(notifier, type) and issubclass(notifier, BaseNotifier):
        notifier = notifier()
    if isinstance(notifier, type) or not callable(notifier):
        raise TypeError("it is neither a notifier nor a function")
    return notifier  # type: ignore[no-any-return]
