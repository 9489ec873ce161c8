"""Roll back what a run published: the previous rows come back in a new version of the table.

Arguments: a file with the request as JSON (or --request JSON), --lake, --config, --result FILE,
--attempt NAME.
Keys of the request: run.
"""

from __future__ import annotations

import sys

from capstan.jobs import handlers
from capstan.jobs.main import main

if __name__ == "__main__":
    sys.exit(main(handlers.rollback))
