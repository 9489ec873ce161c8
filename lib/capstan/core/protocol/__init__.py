"""Events, the rules they must obey, and their checker."""

from __future__ import annotations

from capstan.core.protocol.checker import StreamChecker, Verdict, check_all
from capstan.core.protocol.events import Event, Fault, Item, Messages, Progress
from capstan.core.protocol.release import Release
from capstan.core.protocol.rules import Rule, Violation
from capstan.core.protocol.transcript import (
    json_text,
    read_transcript,
    transcript_line,
    transcript_minimum,
    transcript_release,
)

__all__ = [
    "Event",
    "Fault",
    "Item",
    "Messages",
    "Progress",
    "Release",
    "Rule",
    "StreamChecker",
    "Verdict",
    "Violation",
    "check_all",
    "json_text",
    "read_transcript",
    "transcript_line",
    "transcript_minimum",
    "transcript_release",
]
