"""Compact and clean up tapes, and the tables that all streams of the lake share.

Arguments: a file with the request as JSON (or --request JSON), --lake, --config, --result FILE,
--attempt NAME.
Keys of the request: streams (a list of names; all by default) and keep (how long to keep staged
output that can no longer be published, such as "30 days").
"""

from __future__ import annotations

import sys

from capstan.jobs import handlers
from capstan.jobs.main import main

if __name__ == "__main__":
    sys.exit(main(handlers.maintain))
