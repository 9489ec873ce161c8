"""Recordings of other systems: onto a tape, and off it again."""

from __future__ import annotations

from capstan.exchange.exporting import Exported, export_recordings
from capstan.exchange.form import Form
from capstan.exchange.importing import Imported, import_recordings
from capstan.exchange.recapture import Recaptured, RecaptureRequest, recapture
from capstan.exchange.topic_import import TakenOver, import_topics
from capstan.exchange.topics import Published, export_topics

__all__ = [
    "Exported",
    "Form",
    "Imported",
    "Published",
    "RecaptureRequest",
    "Recaptured",
    "TakenOver",
    "export_recordings",
    "export_topics",
    "import_recordings",
    "import_topics",
    "recapture",
]
