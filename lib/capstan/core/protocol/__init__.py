"""Events, the rules they must obey, and two checkers."""

from __future__ import annotations

from capstan.core.protocol.checker import StreamChecker, check_all
from capstan.core.protocol.events import Event, Fault, Item, Messages, Progress
from capstan.core.protocol.json_text import json_text
from capstan.core.protocol.reference_checker import Verdict, check
from capstan.core.protocol.rules import Rule, Violation
from capstan.core.protocol.transcript import read_transcript, transcript_line, transcript_minimum

__all__ = [
    "Event",
    "Fault",
    "Item",
    "Messages",
    "Progress",
    "Rule",
    "StreamChecker",
    "Verdict",
    "Violation",
    "check",
    "check_all",
    "json_text",
    "read_transcript",
    "transcript_line",
    "transcript_minimum",
]
