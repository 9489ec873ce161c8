"""Stored identities of pipelines in users' files of earlier versions do not change."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from capstan.core.config import load_config
from tests.support import kept_lake, kept_lake_3

FORMATS = Path(__file__).parents[2] / "formats"
IDENTITIES = {
    number: json.loads((FORMATS / number / "pipelines.json").read_text("utf-8")) for number in "23"
}
# In a process of its own: other tests register pipelines with the same names.
PROGRAM = """
import json
import tests.support.shop
import tests.support.kept_pipelines
from capstan.pipeline.registry import registered
from tests.support.lake_figures import identity_of

print(json.dumps({name: identity_of(registered.get(name)) for name in registered.names}))
"""


@cache
def identities() -> dict[str, object]:
    """The identities of all pipelines in users' files, by name."""
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True)
    return json.loads(ended.stdout)


@pytest.mark.parametrize(
    ("number", "name"),
    [(number, name) for number, stored in IDENTITIES.items() for name in stored["pipelines"]],
)
def test_hash_and_signatures_of_a_pipeline(number: str, name: str) -> None:
    assert identities()[name] == IDENTITIES[number]["pipelines"][name]


@pytest.mark.parametrize("number", IDENTITIES)
def test_hashes_of_transforms(number: str, tmp_path: Path) -> None:
    if number == "3":
        kept_lake_3.declare("first", tmp_path)
    else:
        kept_lake.declare(3, tmp_path)
    declared = load_config(tmp_path / "streams.yaml", lake=str(tmp_path))
    stored = IDENTITIES[number]["transforms"]
    assert {name: declared.transforms[name].code_hash for name in stored} == stored
