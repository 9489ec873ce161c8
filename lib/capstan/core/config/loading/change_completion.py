"""Completion of a merge by the preset of its stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from capstan.core.config.models import Mode
from capstan.core.config.sql_rules import normalised
from capstan.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capstan.core.config.models import Stream

Given = TypeVar("Given")
_SETTINGS = ("keys", "sequence_by", "delete_when", "truncate_when", "unchanged")


def preset_settings(given: Any, streams: Mapping[str, Stream]) -> dict[str, object]:
    """The merge settings that a stream's preset adds; none for pipelines: they have an order."""
    stream = streams.get(given.stream)
    preset = None if stream is None or given.pipeline is not None else stream.source.preset
    if given.mode is not Mode.MERGE or preset is None:
        return {}
    added = {}
    for name in _SETTINGS:
        own, settled = getattr(given, name), getattr(preset, name)
        if own in (None, ()):
            added[name] = settled
        elif _plain(own) != _plain(settled):
            raise InvalidRequestError(
                "CAP-SEQUENCE",
                f"{name} is {_text(own)}, but by its preset, stream {given.stream} has changes "
                f"with {_text(settled)}",
                f"leave out {name}; or declare source.select instead of source.changes",
                stream=given.stream,
            )
    return added


def _plain(value: object) -> object:
    return normalised(value) if isinstance(value, str) else value


def _text(value: object) -> str:
    return ", ".join(value) if isinstance(value, tuple) else str(value or "none")
