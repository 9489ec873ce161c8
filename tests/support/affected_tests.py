"""Which tests reach a module, told from their imports and their names, without running any."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

LAYERS: Final = ("unit", "property", "dags", "spark", "crash", "web")
"""Folders of tests, the cheapest first."""


def files_for(root: Path, file: Path, wanted: Sequence[str]) -> dict[str, list[str]]:
    """The files of tests that reach a module, by layer; first those that are most about it.

    Of two that are as near to it, the one that imports less is more about it.

    Args:
        root: The tree.
        file: The module, below it.
        wanted: Files and folders that may be chosen.
    """
    module = ".".join(file.with_suffix("").parts[1:]).removesuffix(".__init__")
    chosen: dict[str, list[str]] = {}
    for layer in LAYERS:
        ranked = []
        for test in sorted((root / "tests" / layer).rglob("test_*.py")):
            name, rank = str(test.relative_to(root)), _rank(root, test, module)
            if rank is not None and any(Path(name).is_relative_to(each) for each in wanted):
                ranked.append((rank, len(_imports(test)), name))
        if ranked:
            chosen[layer] = [name for _, _, name in sorted(ranked)]
    return chosen


def _rank(root: Path, test: Path, module: str) -> int | None:
    """How far a file of tests is from a module; None where it does not reach its room."""
    room = ".".join(module.split(".")[:2])
    own, all_of = _imports(test), _reached(root, test)
    if module in own:
        return 0
    short = room.rpartition(".")[2]
    if re.match(rf"test_{short}(_|\.)", test.name) or short in test.relative_to(root).parts[2:-1]:
        return 1
    for rank, names in ((2, own), (3, all_of)):
        if any(name == room or name.startswith(f"{room}.") for name in names):
            return rank
    return None


@cache
def _imports(file: Path) -> frozenset[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
    return frozenset(name for name in found if name.startswith(("capstan", "tests.")))


@cache
def _reached(root: Path, file: Path) -> frozenset[str]:
    """What a file imports by itself and by what tests share."""
    found, waiting = set(_imports(file)), set(_imports(file))
    while waiting:
        name = waiting.pop()
        shared = root / Path(*name.split(".")).with_suffix(".py")
        if name.startswith("tests.") and shared.exists():
            waiting |= _imports(shared) - found
            found |= _imports(shared)
    return frozenset(found)
