"""Show what a replay would read, write and change in its target, without writing anything.

The app itself is `python -m capstan.jobs.plan`.
"""

from __future__ import annotations

import runpy

if __name__ == "__main__":
    runpy.run_module("capstan.jobs.plan", run_name="__main__")
