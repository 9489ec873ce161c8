"""The public names: what `Context` and `capture_into` take and return, and the errors."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_type_hints

import capstan
import capstan.airflow
import capstan.pipeline.operators
from capstan.api import attach, context, workplace
from capstan.api.notebook import HTML
from capstan.errors import CapstanError, CodedError, FencedError


def typing_names(*modules: Any) -> dict[str, Any]:
    """What modules import only for their types."""
    names = {}
    for module in modules:
        source = Path(module.__file__).read_text(encoding="utf-8")
        guarded = [node for node in ast.parse(source).body if isinstance(node, ast.If)]
        for node in (part for block in guarded for part in block.body):
            assert isinstance(node, ast.ImportFrom)
            for alias in node.names:
                names[alias.name] = getattr(import_module(str(node.module)), alias.name)
    return names


def classes(hint: Any) -> Iterator[type]:
    """The classes of Capstan in an annotation."""
    for part in get_args(hint):
        yield from classes(part)
    if isinstance(hint, type) and hint.__module__.startswith("capstan."):
        yield hint


def verbs() -> list[Any]:
    members = [
        getattr(capstan.Context, name) for name in dir(capstan.Context) if not name.startswith("_")
    ]
    functions = [
        getattr(member, "fget", None) or getattr(member, "func", member) for member in members
    ]
    return [inspect.unwrap(function) for function in functions]


def annotated(*keys: str) -> set[type]:
    names = typing_names(context, workplace, attach)
    hints = [get_type_hints(verb, localns=names) for verb in (*verbs(), capstan.capture_into)]
    expected = [hint for item in hints for key, hint in item.items() if not keys or key in keys]
    return {actual for hint in expected for actual in classes(hint)}


def test_each_public_name_is_taken_or_returned_or_an_error() -> None:
    public = {name: getattr(capstan, name) for name in capstan.__all__}
    errors = {
        item
        for item in public.values()
        if isinstance(item, type) and issubclass(item, CapstanError)
    }
    ways_in = {capstan.Context, capstan.capture_into}
    assert set(public.values()) == annotated() | errors | ways_in
    coded = {CodedError, *CodedError.__subclasses__()}  # Of other packages.
    assert errors == {CapstanError, *CapstanError.__subclasses__(), FencedError} - coded


def test_each_result_is_frozen_has_json_and_is_shown_in_notebooks() -> None:
    results = annotated("return") - {capstan.Lake, capstan.ProjectConfig, capstan.CaptureInto}
    assert {result.__name__ for result in results} == set(HTML)
    for result in results:
        assert dataclasses.is_dataclass(result)
        assert result.__dataclass_params__.frozen  # type: ignore[attr-defined]
        assert callable(result.to_json)  # type: ignore[attr-defined]


def test_a_name_imports_only_what_it_needs() -> None:
    code = (
        "import capstan, sys; capstan.CapstanError, capstan.Context, capstan.ReplayResult;"
        "print(sorted({'pyspark', 'pyarrow', 'deltalake', 'airflow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_names_that_are_not_public_are_no_attributes() -> None:
    for package in (capstan, capstan.airflow, capstan.pipeline, capstan.pipeline.operators):
        assert not hasattr(package, "nothing_of_this_name")
        assert set(package.__all__) <= set(dir(package))
