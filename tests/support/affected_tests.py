"""Selects the tests that reach a module, from their imports and names, without running any."""

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
    """The test files that reach a module, by layer; the closest first.

    Of two equally close files, the one with fewer imports comes first.

    Args:
        root: The tree.
        file: The module, below the root.
        wanted: Files and folders to choose from.
    """
    module = ".".join(file.with_suffix("").parts[1:]).removesuffix(".__init__")
    chosen: dict[str, list[str]] = {}
    for layer in LAYERS:
        ranked = []
        for test in sorted((root / "tests" / layer).rglob("test_*.py")):
            name, rank = str(test.relative_to(root)), _rank(root, test, module)
            if rank is not None and any(Path(name).is_relative_to(folder) for folder in wanted):
                ranked.append((rank, len(_imports(test)), name))
        if ranked:
            chosen[layer] = [name for _, _, name in sorted(ranked)]
    return chosen


def _rank(root: Path, test: Path, module: str) -> int | None:
    """Distance of a test file from a module; None if it does not reach the module's package."""
    room = ".".join(module.split(".")[:2])
    direct, reached = _imports(test), _reached(root, test)
    if module in direct:
        return 0
    short = room.rpartition(".")[2]
    if re.match(rf"test_{short}(_|\.)", test.name) or short in test.relative_to(root).parts[2:-1]:
        return 1
    for rank, names in ((2, direct), (3, reached)):
        if any(name == room or name.startswith(f"{room}.") for name in names):
            return rank
    return None


@cache
def _imports(file: Path) -> frozenset[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(name for name in names if name.startswith(("capstan", "tests.")))


@cache
def _reached(root: Path, file: Path) -> frozenset[str]:
    """The imports of a file, including those of shared test modules."""
    names, pending = set(_imports(file)), set(_imports(file))
    while pending:
        name = pending.pop()
        shared = root / Path(*name.split(".")).with_suffix(".py")
        if name.startswith("tests.") and shared.exists():
            pending |= _imports(shared) - names
            names |= _imports(shared)
    return frozenset(names)
