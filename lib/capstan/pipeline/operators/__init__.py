"""Built-in operators of pipelines. All work on whole batches.

Operators that depend on order take it from times and values, never from arrival. The same rows at
the same times give the same tables, however they are cut into batches.
"""

from __future__ import annotations

from typing import Any

from capstan.core.public_names import names_of, public_name


def __getattr__(name: str) -> Any:
    return public_name(__name__, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *names_of(__name__)})
