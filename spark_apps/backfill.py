"""Fill missing intervals of one or several declared replays, run by run, in one Spark session.

The app itself is `python -m capstan.jobs.backfill`.
"""

from __future__ import annotations

import runpy

if __name__ == "__main__":
    runpy.run_module("capstan.jobs.backfill", run_name="__main__")
