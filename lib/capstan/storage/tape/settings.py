"""The settings of a tape, stored with it: how it is recorded, by a declaration or from a source."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any, Self

from capstan.core.json_object import Json


@dataclass(frozen=True, slots=True)
class TapeSettings:
    """`fixed` determines the worker and time of each record, and can never change for a tape.

    `free` may change between two micro-batches.
    """

    fixed: Json = field(default_factory=dict)
    free: Json = field(default_factory=dict)

    @property
    def time(self) -> Json:
        """The source of event times; empty for counted times, and for tapes without a capture."""
        return self.fixed.get("time") or {}

    @property
    def workers(self) -> Json:
        """The source of workers; empty for tapes without a capture."""
        workers = self.fixed.get("workers")
        return workers if isinstance(workers, dict) else {}

    @property
    def count(self) -> int | None:
        """The number of workers by key; None when workers are not by key."""
        return self.workers.get("count")

    @property
    def pairs(self) -> str | None:
        """The type of imported times if it has pairs, which are ordered as no Product is."""
        imported = self.fixed.get("import")
        name = imported.get("time_type") if isinstance(imported, dict) else None
        # As types are named, the parts of a tuple are separated by a comma and a blank, and those
        # of a Product by a comma.
        return name if isinstance(name, str) and ", " in name else None

    @property
    def timely(self) -> str | None:
        """The release of timely in whose form its recordings are exported; None if not stated."""
        imported = self.fixed.get("import")
        stated = (imported if isinstance(imported, dict) else self.fixed).get("timely")
        return None if stated is None else str(stated)

    def with_count(self, count: int) -> Self:
        """The settings with another number of workers by key."""
        return replace(self, fixed={**self.fixed, "workers": {**self.workers, "count": count}})

    def to_json(self) -> dict[str, Any]:
        """The object that the tape stores."""
        return {"fixed": self.fixed, "free": self.free}

    def to_text(self) -> str:
        """The text that the tape stores."""
        return json.dumps(self.to_json(), sort_keys=True)

    @classmethod
    def parse(cls, text: str) -> Self:
        """The settings in the text of `to_text`."""
        value = json.loads(text)
        return cls(value.get("fixed") or {}, value.get("free") or {})
