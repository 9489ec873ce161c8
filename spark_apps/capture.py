"""Append to the tape what has arrived of a declared stream.

The app itself is `python -m capstan.jobs.capture`.
"""

from __future__ import annotations

import runpy

if __name__ == "__main__":
    runpy.run_module("capstan.jobs.capture", run_name="__main__")
