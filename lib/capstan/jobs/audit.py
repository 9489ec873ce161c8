"""Compare what a run published, or any table, with the tape.

Arguments: a file with the request as JSON (or --request JSON), --lake, --config, --result FILE,
--attempt NAME.
Keys of the request: run, version; or audits (a list of these) and strict; or those of
`capstan.replay.standalone_audit.TableAudit`.
"""

from __future__ import annotations

import sys

from capstan.jobs import handlers
from capstan.jobs.main import main

if __name__ == "__main__":
    sys.exit(main(handlers.audit))
