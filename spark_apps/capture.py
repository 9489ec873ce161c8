"""Append to the tape what has arrived of a declared stream."""

from __future__ import annotations

import sys

from capstan.jobs.handlers import capture
from capstan.jobs.main import main

if __name__ == "__main__":
    sys.exit(main(capture))
