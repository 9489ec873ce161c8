"""Stored identities of pipelines in users' files of earlier versions do not change."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from capstan.core.config import load_config
from capstan.pipeline.registry import registered
from tests.support import kept_lake, kept_lake_3, lake_figures

FORMATS = Path(__file__).parents[2] / "formats"
IDENTITIES = {
    number: json.loads((FORMATS / number / "pipelines.json").read_text("utf-8")) for number in "23"
}


@pytest.mark.parametrize(
    ("number", "name"),
    [(number, name) for number, stored in IDENTITIES.items() for name in stored["pipelines"]],
)
def test_hash_and_signatures_of_a_pipeline(number: str, name: str) -> None:
    importlib.import_module("tests.support.shop")
    importlib.import_module("tests.support.kept_pipelines")
    stored = IDENTITIES[number]["pipelines"][name]
    assert lake_figures.identity_of(registered.get(name)) == stored


@pytest.mark.parametrize("number", IDENTITIES)
def test_hashes_of_transforms(number: str, tmp_path: Path) -> None:
    if number == "3":
        kept_lake_3.declare("first", tmp_path)
    else:
        kept_lake.declare(3, tmp_path)
    declared = load_config(tmp_path / "streams.yaml", lake=str(tmp_path))
    stored = IDENTITIES[number]["transforms"]
    assert {name: declared.transforms[name].code_hash for name in stored} == stored
