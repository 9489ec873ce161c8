"""Roll back what a run published: the previous rows come back in a new version of the table.

The app itself is `python -m capstan.jobs.rollback`.
"""

from __future__ import annotations

import runpy

if __name__ == "__main__":
    runpy.run_module("capstan.jobs.rollback", run_name="__main__")
