"""Registry of pipelines; a request names a pipeline and never contains code."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from capstan.core.config.loading.registry import ByName
from capstan.errors import InvalidRequestError
from capstan.pipeline.definition import DagFunction, Pipeline, SideTable, Sink, register
from capstan.pipeline.lookup import Lookup
from capstan.pipeline.operators.time_buffer import Length
from capstan.pipeline.stored_names import importable

Function = TypeVar("Function", bound=DagFunction)


class Pipelines(ByName[Pipeline]):
    """Pipelines by name."""

    kind = "pipeline"

    def __init__(
        self,
        declared: Mapping[str, Pipeline] | None = None,
        references: Mapping[str, str] | None = None,
    ) -> None:
        """Create a registry.

        `references` are further pipelines by name, as `package.module:function` of a function with
        the decorator `pipeline`; they are imported on first use.
        """
        super().__init__(declared)
        self._references: dict[str, str] = dict(references or {})

    @property
    def names(self) -> tuple[str, ...]:
        """All known names, sorted."""
        return tuple(sorted({*self._known, *self._references}))

    def get(self, name: str) -> Pipeline:
        """Return the pipeline with this name.

        Raises:
            InvalidRequestError: `CAP-PIPELINE` when none has this name, with the known names in the
                hint; when its reference has no registered pipeline; or when another one has its
                name.
        """
        if name in self._references:
            self.add(_imported(name, self._references[name]))
        return super().get(name)

    def pipeline(
        self,
        *,
        name: str,
        sinks: Iterable[Sink],
        description: str = "",
        coordinate: str | None = None,
        lookback: Length = 0,
        lookahead: Length = 0,
        unbounded: bool = False,
        tables: Iterable[SideTable] = (),
        modules: Iterable[str] = (),
        lookups: Iterable[Lookup] = (),
        engine_share: float = 0.02,
    ) -> Callable[[Function], Function]:
        """Register the decorated function, which returns a graph, as a pipeline.

        The arguments are the fields of `Pipeline`. The graph is built on demand.

        Raises:
            InvalidRequestError: `CAP-NAME` or `CAP-PIPELINE` when a setting is invalid or the name
                is taken.
        """

        def decorate(function: Function) -> Function:
            # A function inside another cannot be imported; only `register` makes it resolvable.
            name_in_module = function.__qualname__.replace("<locals>.", "")
            reference = f"{function.__module__}:{name_in_module}"
            self.add(
                Pipeline(
                    name,
                    reference,
                    tuple(sinks),
                    description,
                    coordinate,
                    lookback,
                    lookahead,
                    unbounded,
                    tuple(tables),
                    tuple(modules),
                    tuple(lookups),
                    engine_share,
                )
            )
            register(reference, function)
            return function

        return decorate


registered = Pipelines()
"""Pipelines that the decorator `pipeline` of this module has registered in this process."""

pipeline = registered.pipeline


def pipelines(
    declared: Mapping[str, Pipeline] | None = None, references: Mapping[str, str] | None = None
) -> Pipelines:
    """Return all pipelines that a request may name: these, and those registered in this process.

    The arguments are those of `Pipelines`.

    Raises:
        InvalidRequestError: `CAP-PIPELINE` when two pipelines have the same name.
    """
    registry = Pipelines(declared, references)
    for name in registered.names:
        registry.add(registered.get(name))
    return registry


def _imported(name: str, reference: str) -> Pipeline:
    """Return the pipeline that a reference names, under its name in this registry."""
    current = importable(reference)
    module = current.partition(":")[0]
    try:
        importlib.import_module(module)
    except (ImportError, ValueError) as error:
        raise _unregistered(name, reference, f"cannot be imported: {error}") from error
    for known in registered.names:
        candidate = registered.get(known)
        if candidate.function == current:
            return replace(candidate, name=name)
    raise _unregistered(name, reference, "is not registered as a pipeline")


def _unregistered(name: str, reference: str, problem: str) -> InvalidRequestError:
    return InvalidRequestError(
        "CAP-PIPELINE",
        f"pipeline {name}: {reference} {problem}",
        "name a function that has the decorator capstan.pipeline.pipeline",
        pipeline=name,
    )
