"""Check the recordings of a stream's workers against the rules.

The app itself is `python -m capstan.jobs.verify`.
"""

from __future__ import annotations

import runpy

if __name__ == "__main__":
    runpy.run_module("capstan.jobs.verify", run_name="__main__")
