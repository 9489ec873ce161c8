"""Types shared by the handlers of apps and their main program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from capstan.core.config import ProjectConfig, load_optional
from capstan.errors import CapstanError, InvalidRequestError
from capstan.storage.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JsonObject = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Place:
    """The context of an app: the lake, and the declaration file if one was named."""

    lake: Lake
    streams: str | None = None

    def declarations(self, *, required: bool = False) -> ProjectConfig:
        """The declarations, as `load_optional` reads them."""
        return load_optional(self.streams, lake=self.lake.root, required=required)

    @property
    def modules(self) -> tuple[Path, ...]:
        """Modules beside the declarations; none if these cannot be read, which handlers report."""
        try:
            return self.declarations().modules
        except InvalidRequestError:
            return ()


@dataclass(frozen=True, slots=True)
class JobResult:
    """The result of an app, and the error to exit with if a check failed."""

    value: JsonObject
    refusal: CapstanError | None = None


Work = Callable[["SparkSession"], JobResult]
Handler = Callable[[JsonObject, Place], Work]
