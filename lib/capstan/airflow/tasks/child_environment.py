"""Variables of a program that a task starts.

Airflow's hook for Spark gives a program the environment of its own process, and shows all that it
is given itself. So the values are set in that process, which runs one task and nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def inherited(values: Mapping[str, str | None]) -> Iterator[None]:
    """Set variables inside the `with` block for a program that starts there; None removes one.

    No argument, request, rendered field or XCom has a value.
    """
    before = {name: os.environ.get(name) for name in values}
    _set(values)
    try:
        yield
    finally:
        _set(before)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
