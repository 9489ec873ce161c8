"""Check the recordings of a stream's workers against the rules."""

from __future__ import annotations

import sys

from capstan.jobs.handlers import verify
from capstan.jobs.main import main

if __name__ == "__main__":
    sys.exit(main(verify))
