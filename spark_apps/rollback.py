"""Roll back what a run published: the previous rows come back in a new version of the table."""

from __future__ import annotations

import sys

from capstan.jobs.handlers import rollback
from capstan.jobs.main import main

if __name__ == "__main__":
    sys.exit(main(rollback))
