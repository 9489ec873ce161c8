"""Check the recordings of a stream's workers against the rules.

Arguments: a file with the request as JSON (or --request JSON), --lake, --config, --result FILE,
--attempt NAME.
Keys of the request: stream, workers, as_of, deep.
"""

from __future__ import annotations

import sys

from capstan.jobs import handlers
from capstan.jobs.main import main

if __name__ == "__main__":
    sys.exit(main(handlers.verify))
