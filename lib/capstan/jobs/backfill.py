"""Fill missing intervals of one or several declared replays, run by run, in one Spark session.

Arguments: a file with the request as JSON (or --request JSON), --lake, --config, --result FILE,
--attempt NAME.
Keys of the request: those of `capstan.backfill.planner.BackfillRequest`, or backfills (a list of
these).
"""

from __future__ import annotations

import sys

from capstan.jobs import handlers
from capstan.jobs.main import main

if __name__ == "__main__":
    sys.exit(main(handlers.backfill))
