"""The public names of a package, each imported when it is first used; its stub lists them once."""

from __future__ import annotations

import ast
import pkgutil
from functools import cache
from importlib import import_module
from typing import Any


@cache
def names_of(package: str) -> dict[str, tuple[str, str]]:
    """The module, and the name in it, of each public name of a package."""
    stub = pkgutil.get_data(package, "__init__.pyi")
    assert stub is not None
    return {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in ast.parse(stub).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def public_name(package: str, name: str) -> Any:
    """The object of a public name, or `__all__`, for the package's `__getattr__`."""
    names = {} if name == "__path__" else names_of(package)
    if name == "__all__":
        return sorted(names)
    if name not in names:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    module, inside = names[name]
    return getattr(import_module(module), inside)
