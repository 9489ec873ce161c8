"""Triggers that look at the lake for tasks which wait without a slot.

A trigger keeps nothing: when its triggerer is killed, another goes on with the same arguments. It
needs no JVM. When it fires, the task looks for itself, so that results and errors are the task's.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any

from airflow.sdk import timezone
from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from capstan.airflow.settings import read_settings
from capstan.core.json_object import Json

# A store may fail for a while; the task says what is wrong if it still does after so many looks.
_FAILURES = 5


class LakeTrigger(BaseTrigger):
    """Fires when what it looks for is there, when its time is over, or when it cannot look."""

    def __init__(self, *, lake: str, interval: float, since: str, until: str) -> None:
        """Create a trigger; its arguments are JSON.

        Args:
            lake: The lake.
            interval: The seconds between two looks, at most: the first ones follow faster.
            since: When its task began to wait, in ISO 8601. The event has it.
            until: When to stop, in ISO 8601.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.lake = lake
        self.interval = interval
        self.since = since
        self.until = until

    @abstractmethod
    def is_there(self) -> bool:
        """Whether that for which it looks is there; this may block."""

    @abstractmethod
    def arguments(self) -> dict[str, Any]:
        """The arguments besides those of every such trigger."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class, and the arguments that make the same trigger."""
        own = type(self)
        names = ("lake", "interval", "since", "until")
        usual = {name: getattr(self, name) for name in names}
        return f"{own.__module__}.{own.__qualname__}", {**usual, **self.arguments()}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look until it fires, once."""
        # In a thread of its own, from which Airflow's connections can be read: a slow store does
        # not hold up the other triggers of the process.
        look = sync_to_async(self.is_there, thread_sensitive=False)
        until, failures, pause = datetime.fromisoformat(self.until), 0, min(1.0, self.interval)
        while failures < _FAILURES and (left := (until - timezone.utcnow()).total_seconds()) > 0:
            try:
                if await look():
                    break
                failures = 0
            except Exception as error:
                failures += 1
                self.log.warning("cannot look at the lake: %s", error)
            await asyncio.sleep(min(pause, left))
            pause = min(2 * pause, self.interval)
        yield TriggerEvent(self.since)  # type: ignore[no-untyped-call]


class ResultTrigger(LakeTrigger):
    """Fires when an attempt has left its result, or its job has died."""

    def __init__(self, *, attempt: str, **usual: Any) -> None:
        """Create a trigger for the attempt of this name."""
        super().__init__(**usual)
        self.attempt = attempt

    def arguments(self) -> dict[str, Any]:
        """The name of the attempt."""
        return {"attempt": self.attempt}

    def is_there(self) -> bool:
        """Whether there is a result, of whatever content, or will be none."""
        from capstan.storage.job_attempts import JobAttempt
        from capstan.storage.lake import Lake

        return JobAttempt(Lake.at(self.lake), self.attempt).is_over()


class FrontierTrigger(LakeTrigger):
    """Fires when times of streams are proven complete."""

    def __init__(self, *, config: str, fields: Sequence[Json], **usual: Any) -> None:
        """Create a trigger that plans requests with these fields, with the declarations."""
        super().__init__(**usual)
        self.config = config
        self.fields = list(fields)

    def arguments(self) -> dict[str, Any]:
        """The declaration file, and the fields of each plan."""
        return {"config": self.config, "fields": self.fields}

    def is_there(self) -> bool:
        """Whether the range of each plan is complete."""
        from capstan.airflow.lake_queries import plan_request

        settings = read_settings("dag.py", lake=self.lake, config=self.config)
        plans = (plan_request(settings, fields) for fields in self.fields)
        return all(plan is not None and plan.complete for plan in plans)
