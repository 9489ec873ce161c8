"""Fill missing intervals of one or several declared replays, run by run, in one Spark session."""

from __future__ import annotations

import sys

from capstan.jobs.handlers import backfill
from capstan.jobs.main import main

if __name__ == "__main__":
    sys.exit(main(backfill))
