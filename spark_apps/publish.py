"""Publish a run that waits after its audit, or mark it as rejected.

The app itself is `python -m capstan.jobs.publish`.
"""

from __future__ import annotations

import runpy

if __name__ == "__main__":
    runpy.run_module("capstan.jobs.publish", run_name="__main__")
