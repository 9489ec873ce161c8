"""Writes `pipelines.json` with the code of commit 39c5aa1, whose import paths it has.

PYTHONPATH=CHECKOUT_OF_39C5AA1/lib:. python tests/formats/3/make.py

If `tests` no longer runs with that code, take `tests` of the commit that brought this file.
"""

from __future__ import annotations

import importlib
import json
import tempfile
from pathlib import Path

from capstan.core.config import load_config
from capstan.pipeline.registry import registered
from tests.support import kept_lake_3, lake_figures

with tempfile.TemporaryDirectory() as name:
    kept_lake_3.declare("first", Path(name))
    declared = load_config(Path(name, "streams.yaml"), lake=name)
importlib.import_module("tests.support.kept_pipelines")
stored = {
    "pipelines": {
        name: lake_figures.identity_of(registered.get(name)) for name in kept_lake_3.PIPELINES
    },
    # That of `shop.py` imports from former paths.
    "transforms": {"by_customer": declared.transforms["by_customer"].code_hash},
}
path = Path(__file__).parent / "pipelines.json"
path.write_text(f"{json.dumps(stored, indent=1, sort_keys=True)}\n")
