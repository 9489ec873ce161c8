"""Pages of the site that are not in `docs`: those of the root, the Python API, the error codes."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

import error_catalogue

ROOT = Path(__file__).parents[2]
# By their place in the site.
_OF_THE_ROOT = {
    "about.md": "README.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "SECURITY.md": "SECURITY.md",
    "LICENSE": "LICENSE",
    **{(name := f"examples/{path.name}"): name for path in (ROOT / "examples").glob("*.*")},
    "tests/README.md": "tests/README.md",
    "tests/bench/README.md": "tests/bench/README.md",
}
_API = ("capstan", "capstan.pipeline", "capstan.pipeline.operators", "capstan.airflow")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages."""
    for page, name in _OF_THE_ROOT.items():
        content = (ROOT / name).read_text("utf-8")
        files.append(File.generated(config, page, content=content))
    files.append(File.generated(config, "reference.md", content=_reference()))
    files.append(File.generated(config, "error-codes.md", content=error_catalogue.page()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links between `docs` and the root to where the pages are in the site."""
    if page.file.src_uri in _OF_THE_ROOT:
        markdown = markdown.replace("](docs/", "](").replace("](README.md", "](about.md")
    elif "/" not in page.file.src_uri:
        markdown = markdown.replace("](../README.md", "](about.md").replace("](../", "](")
    return markdown.replace("](site/error_codes.toml", "](error-codes.md")


def _reference() -> str:
    """The page of the Python API: what each public package exports."""
    parts = ["# Python API\n"]
    for package in _API:
        module = importlib.import_module(package)
        names = [name for name in module.__all__ if not name.startswith("__")]
        parts += [f"## {package}\n", *(f"::: {package}.{name}\n" for name in sorted(names))]
    return "\n".join(parts)
