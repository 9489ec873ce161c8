"""`make test` runs what `tests/spark/conftest.py` names, so each name is one of a test."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SPARK = Path(__file__).parents[1] / "spark"


def core() -> dict[str, set[str]]:
    """The table `CORE`, read without importing it: this is no test of Spark."""
    tree = ast.parse((SPARK / "conftest.py").read_text(encoding="utf-8"))
    [value] = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CORE"
    ]
    return eval(compile(ast.Expression(value), "CORE", "eval"))


@pytest.mark.parametrize("file", core())
def test_every_core_test_is_there(file: str) -> None:
    tree = ast.parse((SPARK / f"test_{file}.py").read_text(encoding="utf-8"))
    there = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assert {name.split("[")[0] for name in core()[file]} <= there
