"""Replay workers and times into a table: verify, stage, audit, publish.

Arguments: a file with the request as JSON (or --request JSON), --lake, --config, --result FILE,
--attempt NAME.
Keys of the request: those of `capstan.replay.planning.request.Request`.
"""

from __future__ import annotations

import sys

from capstan.jobs import handlers
from capstan.jobs.main import main

if __name__ == "__main__":
    sys.exit(main(handlers.replay))
