"""Whether runs of a backfill may begin at this moment."""

from __future__ import annotations

from capstan.core.config import Replay
from capstan.errors import IncompleteError
from capstan.errors.shell_command import command
from capstan.storage.lake import Lake
from capstan.storage.ledger.pauses import Pause


def why_held(lake: Lake, replay: Replay) -> IncompleteError | None:
    """Why no run of a replay's backfills may begin now; None if it may. Read without a JVM."""
    pause = Pause.read(lake, replay.name)
    if pause is None:
        return None
    return IncompleteError(
        "CAP-PAUSED",
        f"backfills of replay {replay.name} are {pause}",
        f"{command('backfill', replay.name, '--resume')} lets them go on where they were",
        **pause.to_json(),
    )
