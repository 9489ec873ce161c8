"""Fill what is missing of a declared replay, or of several, run by run in one Spark session.

Arguments: a file with the request as JSON (or --request JSON), --lake, --streams, --result FILE.
Keys of the request: those of `capstan.backfill.planner.Backfill`, or `backfills`, a list of such.
"""

from __future__ import annotations

import sys

from capstan import jobs

if __name__ == "__main__":
    sys.exit(jobs.main(jobs.backfill))
