"""New projects: the files that `capstan init` writes, and their sample data."""

from __future__ import annotations

from capstan.cli.scaffold.project import FileStatus, ProjectFile, write_project

__all__ = ["FileStatus", "ProjectFile", "write_project"]
