"""The former names that `tests/support/shop.py` imports, whose stored text must not change.

They lead to the present modules; each is imported when one of its names is first read.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Final

_MODULES: Final = {
    "capstan.dag": "capstan.pipeline",
    "capstan.dag.errors": "capstan.pipeline.graph.errors",
    "capstan.dag.operators": "capstan.pipeline.operators",
    "capstan.declare": "capstan.core.config",
    "capstan.session": "capstan.spark.session",
    "capstan.state": "capstan.pipeline",
    "capstan.workloads": "capstan.demo",
    "capstan.workloads.flight_pipelines": "capstan.demo.pipelines",
}
_NAMES: Final = {
    "BadRequest": "InvalidRequestError",
    "Context": "OperatorContext",
    "Declarations": "ProjectConfig",
    "load": "load_config",
}


class _Former(ModuleType):
    """A module under a former path."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(importlib.import_module(_MODULES[self.__name__]), _NAMES.get(name, name))


def install() -> None:
    """Register the former modules, and the former names of modules that are still there."""
    for path in _MODULES:
        sys.modules.setdefault(path, _Former(path))
    errors = importlib.import_module("capstan.errors")
    vars(errors).setdefault("BadRequest", errors.InvalidRequestError)
    vars(importlib.import_module("capstan.interop"))["__getattr__"] = _recorded


def _recorded(name: str) -> object:
    return getattr(importlib.import_module("capstan.interop.timely"), name)
