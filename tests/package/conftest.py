"""The wheel that the tests of the distribution install."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a copy of the tree, without what tools have left in it."""
    tree = tmp_path_factory.mktemp("tree")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree / name)
    left = shutil.ignore_patterns("*.egg-info", "__pycache__")
    for name in ("lib", "spark_apps"):
        shutil.copytree(ROOT / name, tree / name, ignore=left)
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    options = ["--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(tree)]
    subprocess.run([*pip, *options], check=True, timeout=300)
    [path] = folder.glob("*.whl")
    return path
