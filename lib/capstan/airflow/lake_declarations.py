"""The copy of the declarations in the lake, for components that have no DAG files.

With DAG bundles from Git, or in images of their own, the API server has no DAG folder. Tasks have
the declaration file, and keep a copy of it in the lake.
"""

from __future__ import annotations

from pathlib import Path

from capstan.airflow.lake_files import read_lake_file, write_lake_file
from capstan.airflow.settings import Settings, read_settings

_FILE = "streams.yaml"


def portable_declarations(settings: Settings) -> str | None:
    """The text of the declaration file, to be read elsewhere; None if it cannot be read."""
    try:
        text = settings.config.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    # The copy is elsewhere, so that paths beside the file need its folder.
    return text.replace("{here}", str(settings.config.absolute().parent))


def remember_declarations(settings: Settings) -> None:
    """Copy the declaration file to the lake if it has changed; a failure to write is ignored."""
    text = portable_declarations(settings)
    if text is not None and text != read_lake_file(settings.lake, _FILE):
        write_lake_file(settings.lake, _FILE, text)


def read_page_settings(dag_folder: Path) -> Settings:
    """The settings of the page: of the declaration file, or else of its copy in the lake."""
    settings = read_settings(dag_folder / "any.py")
    if settings.config.exists():
        return settings
    text = read_lake_file(settings.lake, _FILE)
    if text is None:
        return settings
    copy = Path(settings.lake, _FILE)
    if "://" in settings.lake:
        copy = settings.work / "page" / _FILE
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(text, encoding="utf-8")
    return read_settings(dag_folder / "any.py", config=copy)
