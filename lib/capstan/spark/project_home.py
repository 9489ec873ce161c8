"""The project's folder, and the cache folder inside it."""

from __future__ import annotations

import os
from pathlib import Path


def project_home() -> Path:
    """The project's folder: `CAPSTAN_HOME`, or the folder that contains this package's `lib/`."""
    variable = os.environ.get("CAPSTAN_HOME")
    return Path(variable).absolute() if variable else Path(__file__).resolve().parents[3]


def cache_folder() -> Path:
    """The folder for downloads of set-up; it may not exist, and can be deleted at any time."""
    return project_home() / ".cache"
