"""Whether runs of a backfill may begin at this moment: a pause, the hours of the day, the rate."""

from __future__ import annotations

import time

from capstan.backfill.pauses import Pause
from capstan.core.config import Replay
from capstan.errors import IncompleteError
from capstan.errors.shell_command import command
from capstan.storage.lake import Lake
from capstan.storage.ledger.tables import now
from capstan.telemetry.instrumentation import emit

_LOOK = 10.0
"""Seconds between two looks at the pause of a backfill that waits."""


def why_held(lake: Lake, replay: Replay) -> IncompleteError | None:
    """Why no run of a replay's backfills may begin now; None if it may. Read without a JVM."""
    pause = Pause.read(lake, replay.name)
    if pause is not None:
        return IncompleteError(
            "CAP-PAUSED",
            f"backfills of replay {replay.name} are {pause}",
            f"{command('backfill', replay.name, '--resume')} lets them go on where they were",
            **pause.to_json(),
        )
    hours, moment = replay.backfill.hours, now()
    opens = moment if hours is None else hours.next(moment)
    if opens == moment:
        return None
    return IncompleteError(
        "CAP-HOURS",
        f"runs of replay {replay.name}'s backfills begin at {hours} only, next at "
        f"{opens:%Y-%m-%d %H:%M} UTC",
        "run it again then: it goes on where it was; tasks of Airflow wait",
        replay=replay.name,
        opens=opens.isoformat(),
    )


def wait_until(due: float, lake: Lake, replay: Replay) -> IncompleteError | None:
    """Wait for a moment of the monotonic clock, unless no run may begin meanwhile, and say why."""
    waits = due - time.monotonic()
    if waits > 0:
        emit("backfill.waits", replay=replay.name, seconds=round(waits))
    while True:
        held = why_held(lake, replay)
        left = due - time.monotonic()
        if held is not None or left <= 0:
            return held
        time.sleep(min(left, _LOOK))
