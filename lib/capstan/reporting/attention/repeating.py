"""The command that repeats a replay, from the request that its run has stored."""

from __future__ import annotations

from collections.abc import Mapping

from capstan.core.config.names import join_names
from capstan.core.json_object import Json
from capstan.errors.shell_command import shell_line

# Defaults, which no option says.
_UNSAID: tuple[object, ...] = ("", [], {}, "replace")
_OWN = ("stream", "direct", "approve")


def replay_command(request: Json) -> str:
    """The command of a request; empty when no command says the same."""
    # Rules of a declared replay, several streams and versions of lookups are not such options.
    if not request or request.get("replay") or request.get("approve"):
        return ""
    words = ["capstan", "replay", str(request.get("stream"))]
    for name, value in request.items():
        if name in _OWN or value is None or value is False or value in _UNSAID:
            continue
        if isinstance(value, Mapping):
            return ""
        words.append(f"--{name.replace('_', '-')}")
        if value is not True:
            words.append(join_names(map(str, value)) if isinstance(value, list) else str(value))
    return shell_line(*words)
