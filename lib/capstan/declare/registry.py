"""Where requests find transforms: a request brings a name, never code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TypeVar

from capstan.declare.computation import Transform, TransformFunction, register
from capstan.declare.names import did_you_mean, one_of
from capstan.declare.reading import read_model
from capstan.errors import BadRequest

Function = TypeVar("Function", bound=TransformFunction)


class Registry:
    """Transforms by name: those of a declaration file, and those registered in Python."""

    def __init__(self, declared: Mapping[str, Transform] | None = None) -> None:
        """Begin with the transforms of a file, or with none."""
        self._transforms: dict[str, Transform] = dict(declared or {})

    @property
    def names(self) -> tuple[str, ...]:
        """All known names, sorted."""
        return tuple(sorted(self._transforms))

    def add(self, transform: Transform) -> None:
        """Register `transform`; the same one again changes nothing.

        Raises:
            BadRequest: `CAP-TRANSFORM` when another has its name.
        """
        if self._transforms.setdefault(transform.name, transform) != transform:
            raise BadRequest(
                "CAP-TRANSFORM",
                f"there are two transforms named {transform.name}",
                "rename one of the two",
                transform=transform.name,
            )

    def get(self, name: str) -> Transform:
        """The transform that `name` names.

        Raises:
            BadRequest: `CAP-TRANSFORM` when there is none; the hint lists the known names.
        """
        found = self._transforms.get(name)
        if found is not None:
            return found
        raise BadRequest(
            "CAP-TRANSFORM",
            f"no transform is registered as {name[:80]!r}{did_you_mean(name, self.names)}",
            f"known: {one_of(self.names)}",
            transform=name,
            known=list(self.names),
        )

    def transform(
        self,
        *,
        name: str,
        time: str | None = None,
        grain: str | timedelta | None = None,
        worker: str | None = None,
        keys: tuple[str, ...] = (),
        description: str = "",
    ) -> Callable[[Function], Function]:
        """Register the decorated function, DataFrame to DataFrame, as a transform.

        The arguments are the fields of `Transform`; `grain` may be text such as `1 day`.

        Raises:
            BadRequest: `CAP-TRANSFORM` when a setting is wrong or another has the name.
        """

        def decorate(function: Function) -> Function:
            # A function inside another cannot be imported, and is found by `register` alone.
            name_there = function.__qualname__.replace("<locals>.", "")
            reference = f"{function.__module__}:{name_there}"
            fields = {
                "name": name, "description": description, "function": reference,
                "time": time, "grain": grain, "worker": worker, "keys": keys,
            }  # fmt: skip
            self.add(read_model(Transform, {k: v for k, v in fields.items() if v}, "CAP-TRANSFORM"))
            register(reference, function)
            return function

        return decorate


registered = Registry()
"""What the decorator `transform` of this module has registered in this process."""

transform = registered.transform


def transforms(declared: Mapping[str, Transform]) -> Registry:
    """All transforms that a request may name: `declared` ones, and those registered in Python.

    Raises:
        BadRequest: `CAP-TRANSFORM` when one name stands for two.
    """
    registry = Registry(declared)
    for name in registered.names:
        registry.add(registered.get(name))
    return registry
