"""Publish a run that waits after its audit, or mark it as rejected."""

from __future__ import annotations

import sys

from capstan.jobs.handlers import publish
from capstan.jobs.main import main

if __name__ == "__main__":
    sys.exit(main(publish))
