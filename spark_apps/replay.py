"""Replay workers and times into a table: verify, stage, audit, publish.

The app itself is `python -m capstan.jobs.replay`.
"""

from __future__ import annotations

import runpy

if __name__ == "__main__":
    runpy.run_module("capstan.jobs.replay", run_name="__main__")
