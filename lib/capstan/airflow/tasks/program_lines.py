"""The lines that a program prints, in a task's log at the level that each states."""

from __future__ import annotations

import re
from typing import Any

# A line of Spark or of a job: a time and a level, or JSON with it.
_LEVEL = re.compile(
    r"(?:\d\d:\d\d:\d\d|\d\d(?:\d\d)?/\d\d/\d\d \S+) (?P<plain>[A-Z]+) "
    r'|\{"at": "[^"]*", "level": "(?P<json>[a-z]+)"'
)
# Lines of a stack trace belong to the line before them.
_TRACE = re.compile(
    r"at \S+\(|\.\.\. \d+ (?:more|common)|(?:Caused by|Suppressed): |\S*(?:Exception|Error): "
)
_LEVELS = {"WARN": "warning", "WARNING": "warning", "ERROR": "error", "FATAL": "error"}


class LeveledLog:
    """A log that a hook of Airflow writes all lines to as information, as it knows no levels."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self._level = "info"

    def info(self, line: str, *values: object) -> None:
        """Log a line at its level."""
        found = _LEVEL.match(line)
        if found is not None:
            level = found["plain"] or found["json"].upper()
            self._level = _LEVELS.get(level, "info")
        elif not _TRACE.match(line):
            self._level = "info"
        getattr(self._log, self._level)(line, *values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)
