"""Replay workers and times into a table: verify, stage, audit, publish."""

from __future__ import annotations

import sys

from capstan.jobs.handlers import replay
from capstan.jobs.main import main

if __name__ == "__main__":
    sys.exit(main(replay))
