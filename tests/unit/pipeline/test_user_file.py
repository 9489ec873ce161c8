"""Stored identities of a user's file that imports from former paths do not change."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from capstan.core.config import load_config
from capstan.pipeline.registry import registered
from tests.support import kept_lake, lake_figures

KEPT = Path(__file__).parents[2] / "formats" / "2"
IDENTITIES = json.loads((KEPT / "pipelines.json").read_text("utf-8"))


@pytest.mark.parametrize("name", kept_lake.PIPELINES)
def test_hash_and_signatures_of_a_pipeline(name: str) -> None:
    importlib.import_module("tests.support.shop")
    assert lake_figures.identity_of(registered.get(name)) == IDENTITIES["pipelines"][name]


def test_hashes_of_transforms(tmp_path: Path) -> None:
    kept_lake.declare(3, tmp_path)
    declared = load_config(tmp_path / "streams.yaml", lake=str(tmp_path))
    hashes = {name: transform.code_hash for name, transform in declared.transforms.items()}
    assert hashes == IDENTITIES["transforms"]
