"""Compare what a run published, or any table, with the tape."""

from __future__ import annotations

import sys

from capstan.jobs.handlers import audit
from capstan.jobs.main import main

if __name__ == "__main__":
    sys.exit(main(audit))
