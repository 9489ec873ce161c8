"""Events, the rules that they obey, and two checkers of them."""

from __future__ import annotations

from capstan.protocol.events import Event, Fault, Item, Messages, Progress
from capstan.protocol.json_text import json_text
from capstan.protocol.judge import Judge, judge_all
from capstan.protocol.reference import Verdict, check
from capstan.protocol.rules import Rule, Violation
from capstan.protocol.transcript import read_transcript, transcript_line, transcript_minimum

__all__ = [
    "Event",
    "Fault",
    "Item",
    "Judge",
    "Messages",
    "Progress",
    "Rule",
    "Verdict",
    "Violation",
    "check",
    "json_text",
    "judge_all",
    "read_transcript",
    "transcript_line",
    "transcript_minimum",
]
