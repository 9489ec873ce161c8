"""Stored identities of a user's file that imports from former paths do not change."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from capstan.core.config import load_config
from capstan.pipeline.registry import registered
from tests.support import kept_lake, lake_figures

KEPT = Path(__file__).parents[2] / "formats" / "2"
IDENTITIES = json.loads((KEPT / "pipelines.json").read_text("utf-8"))
# In the order of the file's imports.
FORMER = [
    "capstan.dag",
    "capstan.dag.errors",
    "capstan.dag.operators",
    "capstan.declare",
    "capstan.errors.BadRequest",
    "capstan.interop.EventReader",
    "capstan.session",
    "capstan.state",
    "capstan.workloads",
    "capstan.workloads.flight_pipelines",
]
PROGRAM = """
import warnings
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("default")
    from tests.support import shop
    # A second import warns no more.
    from tests.support.shop import hourly
for warning in warned:
    place = warning.filename == shop.__file__
    print(warning.category.__name__, place, str(warning.message).split()[0])
"""


@pytest.mark.filterwarnings("ignore:.* has moved to .*:DeprecationWarning")
@pytest.mark.parametrize("name", kept_lake.PIPELINES)
def test_hash_and_signatures_of_a_pipeline(name: str) -> None:
    importlib.import_module("tests.support.shop")
    assert lake_figures.identity_of(registered.get(name)) == IDENTITIES["pipelines"][name]


@pytest.mark.filterwarnings("ignore:.* has moved to .*:DeprecationWarning")
def test_hashes_of_transforms(tmp_path: Path) -> None:
    kept_lake.declare(3, tmp_path)
    declared = load_config(tmp_path / "streams.yaml", lake=str(tmp_path))
    hashes = {name: transform.code_hash for name, transform in declared.transforms.items()}
    assert hashes == IDENTITIES["transforms"]


def test_each_former_path_warns_once_at_its_import() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert ended.stderr == ""
    assert ended.stdout.splitlines() == [f"DeprecationWarning True {path}" for path in FORMER]
