"""What a commit says of itself in the log of a Delta table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class CommitInfo:
    """Delta's commitInfo of a version, with Capstan's note."""

    version: int
    operation: str  # empty if the writer names none
    at: datetime
    metrics: Mapping[str, str]
    note: Mapping[str, Any]  # empty for a commit by another writer

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> CommitInfo:
        """The commit of an entry of the log."""
        metrics = entry.get("operationMetrics")
        return cls(
            entry["version"],
            entry.get("operation") or "",
            datetime.fromtimestamp((entry.get("timestamp") or 0) / 1000, UTC),
            metrics if isinstance(metrics, dict) else {},
            _note(entry.get("userMetadata")),
        )


def _note(text: object) -> Mapping[str, Any]:
    try:
        note = json.loads(str(text)) if text else {}
    except ValueError:
        return {}
    content = note.get("capstan") if isinstance(note, dict) else None
    return content if isinstance(content, dict) else {}
