"""Who has a run made: the DAG run, task and user of Airflow, which the steps of the run keep.

A job is told by the key `made_by` of its request. It is no part of what is replayed, and so neither
of the run's identity nor of its certificate.
"""

from __future__ import annotations

import getpass
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from typing import Self

from capstan.core.json_object import Json

KEY = "made_by"
"""The key in a job's request, and in the details of steps."""


@dataclass(frozen=True, slots=True)
class MadeBy:
    """What has started a job, as far as it is known."""

    dag: str = ""
    dag_run: str = ""
    task: str = ""  # That has submitted the job; empty if another program has.
    try_number: int = 0  # Of the task; 0 for none.
    map_index: int = -1  # Of a mapped task; -1 for others.
    user: str = ""  # Who has triggered the DAG run; empty for a schedule.

    def to_json(self) -> dict[str, object]:
        """The object as the ledger stores it, without what is not known."""
        values = {field: getattr(self, field.name) for field in fields(self)}
        return {field.name: value for field, value in values.items() if value != field.default}

    @classmethod
    def of_detail(cls, detail: Json) -> Self | None:
        """What the detail of a step keeps; None of older steps, and of those made by hand."""
        stored = detail.get(KEY)
        if not isinstance(stored, Mapping):
            return None
        names = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in stored.items() if name in names})


_present: ContextVar[MadeBy | None] = ContextVar("capstan made by", default=None)


@contextmanager
def making(by: MadeBy | None) -> Iterator[None]:
    """Have the steps that are written inside the `with` block keep who makes them."""
    token = _present.set(by)
    try:
        yield
    finally:
        _present.reset(token)


def user_name() -> str:
    """Who has the work at hand done: the user of Airflow if it is known, else the logged-in one."""
    by = _present.get()
    if by is not None and by.user:
        return by.user
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def signed(detail: Json) -> Json:
    """The detail of a step with who makes it, if that is known."""
    by = _present.get()
    return detail if by is None else {**detail, KEY: by.to_json()}
