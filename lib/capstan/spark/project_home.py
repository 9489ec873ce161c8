"""Where the project lies, and the folder in it that set-up fills."""

from __future__ import annotations

import os
from pathlib import Path


def project_home() -> Path:
    """The project's folder: `CAPSTAN_HOME`, or the folder that holds `lib/` of this package."""
    given = os.environ.get("CAPSTAN_HOME")
    return Path(given).absolute() if given else Path(__file__).resolve().parents[3]


def cache_folder() -> Path:
    """The folder of what set-up fetches; it may not be there yet, and can be deleted any time."""
    return project_home() / ".cache"
