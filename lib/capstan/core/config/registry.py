"""Where requests find transforms: a request brings a name, never code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import ClassVar, Generic, Protocol, TypeVar

from capstan.core.config.names import did_you_mean, one_of
from capstan.core.config.transforms import Transform, TransformFunction, register
from capstan.core.config.validation import read_model
from capstan.errors import InvalidRequestError

Function = TypeVar("Function", bound=TransformFunction)


class HasName(Protocol):
    """Something that has a name of its own."""

    @property
    def name(self) -> str:
        """The name."""


Named = TypeVar("Named", bound=HasName)


class ByName(Generic[Named]):
    """What a request may name: values that were declared, and those that are added.

    Attributes:
        kind: What they are called in errors, whose code is `CAP-` and this.
    """

    kind: ClassVar[str]

    def __init__(self, declared: Mapping[str, Named] | None = None) -> None:
        """Begin with declared values by name, or with none."""
        self._known: dict[str, Named] = dict(declared or {})

    @property
    def names(self) -> tuple[str, ...]:
        """All known names, sorted."""
        return tuple(sorted(self._known))

    def add(self, value: Named) -> None:
        """Register `value`; the same one again changes nothing.

        Raises:
            InvalidRequestError: `CAP-TRANSFORM`, or as the kind is called, when another has its
                name.
        """
        if self._known.setdefault(value.name, value) != value:
            raise InvalidRequestError(
                self._code,
                f"there are two {self.kind}s named {value.name}",
                "rename one of the two",
                **{self.kind: value.name},
            )

    def get(self, name: str) -> Named:
        """The value that `name` names.

        Raises:
            InvalidRequestError: `CAP-TRANSFORM`, or as the kind is called, when there is none; the
                hint lists the known names.
        """
        found = self._known.get(name)
        if found is not None:
            return found
        raise InvalidRequestError(
            self._code,
            f"no {self.kind} is registered as {name[:80]!r}{did_you_mean(name, self.names)}",
            f"known: {one_of(self.names)}",
            **{self.kind: name},
            known=list(self.names),
        )

    @property
    def _code(self) -> str:
        return f"CAP-{self.kind.upper()}"


class Registry(ByName[Transform]):
    """Transforms by name: those of a declaration file, and those registered in Python."""

    kind = "transform"

    def transform(
        self,
        *,
        name: str,
        time: str | None = None,
        grain: str | timedelta | None = None,
        worker: str | None = None,
        keys: tuple[str, ...] = (),
        tolerance: float | None = None,
        description: str = "",
    ) -> Callable[[Function], Function]:
        """Register the decorated function, DataFrame to DataFrame, as a transform.

        The arguments are the fields of `Transform`; `grain` may be text such as `1 day`.

        Raises:
            InvalidRequestError: `CAP-TRANSFORM` when a setting is wrong or another has the name.
        """

        def decorate(function: Function) -> Function:
            # A function inside another cannot be imported, and is found by `register` alone.
            name_there = function.__qualname__.replace("<locals>.", "")
            reference = f"{function.__module__}:{name_there}"
            fields = {
                "name": name, "description": description, "function": reference,
                "time": time, "grain": grain, "worker": worker, "keys": keys,
                "tolerance": tolerance,
            }  # fmt: skip
            given = {k: v for k, v in fields.items() if v or v == 0}
            self.add(read_model(Transform, given, "CAP-TRANSFORM"))
            register(reference, function)
            return function

        return decorate


registered = Registry()
"""What the decorator `transform` of this module has registered in this process."""

transform = registered.transform


def transforms(declared: Mapping[str, Transform]) -> Registry:
    """All transforms that a request may name: `declared` ones, and those registered in Python.

    Raises:
        InvalidRequestError: `CAP-TRANSFORM` when one name stands for two.
    """
    registry = Registry(declared)
    for name in registered.names:
        registry.add(registered.get(name))
    return registry
