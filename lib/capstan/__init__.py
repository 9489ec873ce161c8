"""Capstan records streams in Delta Lake, verifies the recordings, and replays any part of them.

`Context` is the way in: a lake, its declarations, and the verbs. `__init__.pyi` lists the public
names: what these take and return, and the errors. Nothing is imported before it is used: a name
costs what it needs, and Spark starts with the first verb that needs it.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("capstan-replay")
    from capstan.core.public_names import public_name

    return public_name(__name__, name)


def __dir__() -> list[str]:
    from capstan.core.public_names import names_of

    return sorted({*globals(), *names_of(__name__), "__version__"})
