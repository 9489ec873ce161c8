"""Show what a replay would read, write and change in its target, without writing anything."""

from __future__ import annotations

import sys

from capstan.jobs.handlers import plan
from capstan.jobs.main import main

if __name__ == "__main__":
    sys.exit(main(plan))
