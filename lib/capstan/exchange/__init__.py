"""Recordings of other systems: onto a tape, and off it again."""

from __future__ import annotations

from capstan.exchange.exporting import Exported, export_recordings
from capstan.exchange.form import Form
from capstan.exchange.importing import Imported, import_recordings
from capstan.exchange.recapture import Recaptured, RecaptureRequest, recapture

__all__ = [
    "Exported",
    "Form",
    "Imported",
    "RecaptureRequest",
    "Recaptured",
    "export_recordings",
    "import_recordings",
    "recapture",
]
