"""Where requests find pipelines: a request brings a name, never code."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from capstan.core.config.registry import ByName
from capstan.errors import InvalidRequestError
from capstan.pipeline.definition import DagFunction, Pipeline, SideTable, Sink, register
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
        """Begin with some pipelines, or with none.

        Args:
            declared: By name.
            references: By name where others are registered, as `package.module:function` of a
                function under the decorator `pipeline`; imported once it is asked for.
        """
        super().__init__(declared)
        self._references: dict[str, str] = dict(references or {})

    @property
    def names(self) -> tuple[str, ...]:
        """All known names, sorted."""
        return tuple(sorted({*self._known, *self._references}))

    def get(self, name: str) -> Pipeline:
        """The pipeline that `name` names.

        Raises:
            InvalidRequestError: `CAP-PIPELINE` when there is none, where the hint lists the known
                names; when there is nothing where it is said to be registered; or when another one
                is registered under its name.
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
    ) -> Callable[[Function], Function]:
        """Register the decorated function, which gives a graph, as a pipeline.

        The arguments are the fields of `Pipeline`. The graph is built when it is asked for.

        Raises:
            InvalidRequestError: `CAP-NAME`, `CAP-PIPELINE` when a setting is wrong or another has
                the name.
        """

        def decorate(function: Function) -> Function:
            # A function inside another cannot be imported, and is found by `register` alone.
            name_there = function.__qualname__.replace("<locals>.", "")
            reference = f"{function.__module__}:{name_there}"
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
                )
            )
            register(reference, function)
            return function

        return decorate


registered = Pipelines()
"""What the decorator `pipeline` of this module has registered in this process."""

pipeline = registered.pipeline


def pipelines(
    declared: Mapping[str, Pipeline] | None = None, references: Mapping[str, str] | None = None
) -> Pipelines:
    """All pipelines that a request may name: these, and those registered in this process.

    The arguments are those of `Pipelines`.

    Raises:
        InvalidRequestError: `CAP-PIPELINE` when one name stands for two.
    """
    registry = Pipelines(declared, references)
    for name in registered.names:
        registry.add(registered.get(name))
    return registry


def _imported(name: str, reference: str) -> Pipeline:
    """The pipeline that is registered where a reference says, under the name that it has here."""
    now = importable(reference)
    module = now.partition(":")[0]
    try:
        importlib.import_module(module)
    except (ImportError, ValueError) as error:
        raise _unregistered(name, reference, f"cannot be imported: {error}") from error
    for known in registered.names:
        found = registered.get(known)
        if found.function == now:
            return replace(found, name=name)
    raise _unregistered(name, reference, "is not registered as a pipeline")


def _unregistered(name: str, reference: str, what: str) -> InvalidRequestError:
    return InvalidRequestError(
        "CAP-PIPELINE",
        f"pipeline {name}: {reference} {what}",
        "name a function that has the decorator capstan.pipeline.pipeline",
        pipeline=name,
    )
