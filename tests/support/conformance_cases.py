"""The recordings of timely that tests judge, and the variants of them with a fault."""

from __future__ import annotations

import json
from pathlib import Path

from capstan.core.protocol import Release

CONFORMANCE = Path(__file__).parents[1] / "conformance"
RELEASES = {"timely": Release.V031, "timely032": Release.V032}
CASES = [
    f"{folder}/{path.parent.name}"
    for folder in RELEASES
    for path in sorted((CONFORMANCE / folder).glob("*/case.json"))
]
MUTANTS = [
    {**mutant, "folder": folder}
    for folder in RELEASES
    for mutant in json.loads(
        (CONFORMANCE / folder / "mutants" / "expected.json").read_text(encoding="utf-8")
    )["mutants"]
]
