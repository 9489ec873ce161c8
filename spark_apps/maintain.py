"""Compact and clean up tapes, and the tables that all streams of the lake share.

The app itself is `python -m capstan.jobs.maintain`.
"""

from __future__ import annotations

import runpy

if __name__ == "__main__":
    runpy.run_module("capstan.jobs.maintain", run_name="__main__")
