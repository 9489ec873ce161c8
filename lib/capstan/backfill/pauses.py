"""The ledger `pauses`: declared replays whose backfills a person has paused."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Self

from capstan.core.json_object import Json
from capstan.storage.lake import Lake
from capstan.storage.ledger.made_by import user_name
from capstan.storage.ledger.tables import append_rows, read_rows
from capstan.telemetry.instrumentation import emit


@dataclass(frozen=True, slots=True)
class Pause:
    """Who has paused the backfills of a replay or let them go on, when and why."""

    replay: str
    paused: bool
    by: str
    because: str
    at: datetime

    @classmethod
    def read(cls, lake: Lake, replay: str) -> Self | None:
        """The pause of a replay; None if its backfills may go on."""
        rows = read_rows(lake, "pauses", replay=replay)
        return cls(**rows[-1]) if rows and rows[-1]["paused"] else None

    def __str__(self) -> str:
        why = f": {self.because}" if self.because else ""
        return f"paused by {self.by} since {self.at:%Y-%m-%d %H:%M:%S} UTC{why}"

    def to_json(self) -> Json:
        """The pause as a JSON object."""
        return {**asdict(self), "at": self.at.isoformat()}


def set_paused(lake: Lake, replay: str, *, paused: bool, because: str = "") -> bool:
    """Pause the backfills of a replay, or let them go on; False if that is so already."""
    if (Pause.read(lake, replay) is not None) is paused:
        return False
    row = {"replay": replay, "paused": paused, "by": user_name(), "because": because.strip()}
    append_rows(lake, "pauses", [row])
    emit("backfill.paused", replay=replay, paused=paused)
    return True
