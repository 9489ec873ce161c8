"""Registry of transforms. A request contains a name, never code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import ClassVar, Generic, Protocol, TypeVar

from capstan.core.config.loading.validation import read_model
from capstan.core.config.names import did_you_mean, one_of
from capstan.core.config.transforms import Transform, TransformFunction, register
from capstan.errors import InvalidRequestError

Function = TypeVar("Function", bound=TransformFunction)


class HasName(Protocol):
    """An object with a name."""

    @property
    def name(self) -> str:
        """The name."""


Named = TypeVar("Named", bound=HasName)


class ByName(Generic[Named]):
    """Declared and registered values by name."""

    kind: ClassVar[str]  # word for a value in errors; their code is `CAP-` and this word

    def __init__(self, declared: Mapping[str, Named] | None = None) -> None:
        """Start with declared values by name, or with none."""
        self._known: dict[str, Named] = dict(declared or {})

    @property
    def names(self) -> tuple[str, ...]:
        """All known names, sorted."""
        return tuple(sorted(self._known))

    def add(self, value: Named) -> None:
        """Register `value`; registering an equal value again has no effect."""
        if self._known.setdefault(value.name, value) != value:
            raise InvalidRequestError(
                self._code,
                f"there are two {self.kind}s named {value.name}",
                "rename one of the two",
                **{self.kind: value.name},
            )

    def get(self, name: str) -> Named:
        """The value with this name."""
        if name in self._known:
            return self._known[name]
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
    """Transforms by name, from a declaration file and from Python."""

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
        """

        def decorate(function: Function) -> Function:
            # A nested function cannot be imported; only `register` makes it available.
            qualified_name = function.__qualname__.replace("<locals>.", "")
            reference = f"{function.__module__}:{qualified_name}"
            fields = {
                "name": name, "description": description, "function": reference,
                "time": time, "grain": grain, "worker": worker, "keys": keys,
                "tolerance": tolerance,
            }  # fmt: skip
            settings = {key: value for key, value in fields.items() if value or value == 0}
            self.add(read_model(Transform, settings, "CAP-TRANSFORM"))
            register(reference, function)
            return function

        return decorate


registered = Registry()
"""The transforms registered in this process by the decorator `transform`."""

transform = registered.transform


def transforms(declared: Mapping[str, Transform]) -> Registry:
    """All transforms that a request can name: declared ones and those registered in Python."""
    registry = Registry(declared)
    for name in registered.names:
        registry.add(registered.get(name))
    return registry
