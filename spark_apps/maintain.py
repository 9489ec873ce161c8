"""Compact and clean up tapes, and the tables that all streams of the lake share."""

from __future__ import annotations

import sys

from capstan.jobs.handlers import maintain
from capstan.jobs.main import main

if __name__ == "__main__":
    sys.exit(main(maintain))
