"""Compare what a run published, or any table, with the tape.

The app itself is `python -m capstan.jobs.audit`.
"""

from __future__ import annotations

import runpy

if __name__ == "__main__":
    runpy.run_module("capstan.jobs.audit", run_name="__main__")
