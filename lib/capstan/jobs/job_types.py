"""Types shared by the handlers of apps and their main program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from capstan.core.config import ProjectConfig, default_path, load_sound
from capstan.errors import CapstanError
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
        """What is declared; nothing when no file was named and there is none.

        What is wrong in the file is told of whoever asks for it, and holds up nobody else.

        Raises:
            InvalidRequestError: `CAP-DECLARE` when the file cannot be read, or when one is
                `required` and there is none.
        """
        path = Path(self.streams) if self.streams else default_path()
        if not required and not self.streams and not path.exists():
            return ProjectConfig(path, {}, {}, {}, {})
        declared = load_sound(path, lake=self.lake.root)
        declared.require_read()
        return declared


@dataclass(frozen=True, slots=True)
class JobResult:
    """The result of an app, and the error to exit with if a check failed."""

    value: JsonObject
    refusal: CapstanError | None = None


Work = Callable[["SparkSession"], JobResult]
Handler = Callable[[JsonObject, Place], Work]
