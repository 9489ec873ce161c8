"""Publish a run that waits after its audit, or mark it as rejected.

Arguments: a file with the request as JSON (or --request JSON), --lake, --config, --result FILE,
--attempt NAME.
Keys of the request: run, approved (true by default), by, at, reason.
"""

from __future__ import annotations

import sys

from capstan.jobs import handlers
from capstan.jobs.main import main

if __name__ == "__main__":
    sys.exit(main(handlers.publish))
