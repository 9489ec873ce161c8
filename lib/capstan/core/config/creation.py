"""The layout and the properties of a table that Capstan creates."""

from __future__ import annotations

import re
from dataclasses import field
from typing import Annotated

from pydantic import AfterValidator, field_validator, model_validator
from pydantic.dataclasses import dataclass

from capstan.core.config.fields import CONFIG, Columns, Declared, Fields

_PROPERTY = re.compile(r"[A-Za-z][A-Za-z0-9_]*(\.[A-Za-z0-9_]+)*")
_MOST_CLUSTERED = 4


def _few(columns: tuple[str, ...]) -> tuple[str, ...]:
    if len(columns) > _MOST_CLUSTERED:
        raise ValueError(f"has {len(columns)} columns; Delta clusters by {_MOST_CLUSTERED} at most")
    return columns


@dataclass(frozen=True, slots=True, config=CONFIG)
class Creation(Declared):
    """How a table is created by the first replay into it; ignored once the table exists.

    Attributes:
        partition_by: The columns to partition by; omit it for the column of the worker.
        cluster_by: The columns, or fields such as `_time.event`, to cluster by; at most four.
        properties: Properties of the table, such as `delta.enableChangeDataFeed: "true"`.
    """

    partition_by: Columns | None = None
    cluster_by: Annotated[Fields, AfterValidator(_few)] | None = None
    properties: dict[str, str] = field(default_factory=dict, hash=False)

    @field_validator("properties", mode="after")
    @classmethod
    def _usable(cls, properties: dict[str, str]) -> dict[str, str]:
        for key, value in properties.items():
            if not _PROPERTY.fullmatch(key):
                raise ValueError(f"{key!r} is no name of a property, such as 'delta.enableX'")
            if key.startswith("capstan."):
                raise ValueError(f"{key!r} is Capstan's own")
            if key == "delta.appendOnly" and value.lower() != "false":
                raise ValueError(f"{key}: {value} would let no run be rolled back")
        return properties

    @model_validator(mode="after")
    def _one_layout(self) -> Creation:
        if self.partition_by is not None and self.cluster_by is not None:
            raise ValueError("has partition_by and cluster_by; Delta allows only one of them")
        return self

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it names, with fields reduced to their columns."""
        named = self.partition_by or self.cluster_by or ()
        return tuple(dict.fromkeys(name.partition(".")[0] for name in named))
