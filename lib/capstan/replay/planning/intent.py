"""The intent of an attempt: the row of the ledger that it writes before it touches the target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from capstan.core.times import Antichain, Time
from capstan.core.times.region import Region
from capstan.replay.planning.lookup_input import Pin
from capstan.replay.planning.request import Request
from capstan.storage.ledger.certificate import Certificate
from capstan.storage.ledger.region_json import parse_region, region_text


@dataclass(frozen=True, slots=True)
class Placement:
    """The columns of the target that hold worker and time."""

    worker: str | None  # The column of the worker; None when it is not kept.
    time: str | None  # The column of the time; None when it is not kept.
    source: str | None = None  # The source whose workers these are; None for those of all streams.

    def to_json(self) -> dict[str, object]:
        """The object as the ledger stores it."""
        source = {} if self.source is None else {"source": self.source}
        return {"worker": self.worker, "time": self.time, **source}


@dataclass(frozen=True, slots=True)
class Intent:
    """What a later attempt needs to finish, audit or roll back a run."""

    request: Request
    cut: int  # The pinned commit of the tape; of several streams, that of the first.
    region: Region
    reached: Antichain  # The frontier that a followed replay continues from.
    code: str  # The hash of the computation's code; empty for a copy.
    placed: Placement | None  # The target's columns of worker and time; None in old ledgers.
    keys: tuple[str, ...]  # The columns by which `merge` and audits match rows.
    columns: tuple[str, ...] | None  # Those of the written rows; None in old ledgers.
    target_version: int  # The version of the target before the run; -1 when there was no table.
    certificate: Certificate
    cuts: Mapping[str, int] = field(default_factory=dict)  # Of several streams, by source.
    lookups: Mapping[str, Pin] = field(default_factory=dict)  # By the lookup's name.
    table: str = ""  # The Delta id of the target; empty in old ledgers.
    tapes: tuple[str, ...] = ()  # The Delta ids, in the order of the streams; none in old ledgers.

    @property
    def pinned(self) -> Mapping[str, int]:
        """The pinned commits by source, as `Plan.cuts` has them."""
        return self.cuts or {"": self.cut}

    def to_json(self) -> dict[str, object]:
        """The object as the ledger stores it."""
        placed = self.placed or Placement(None, None)
        lookups = {name: pin.to_json() for name, pin in self.lookups.items()}
        return {
            "request": self.request.to_json(),
            "cut": self.cut,
            "region": region_text(self.region),
            "reached": [list(time) for time in self.reached.elements],
            "code": self.code,
            "placed": placed.to_json(),
            "keys": list(self.keys),
            "columns": list(self.columns or ()),
            "target_version": self.target_version,
            "certificate": self.certificate.to_json(),
            **({"cuts": dict(self.cuts)} if self.cuts else {}),
            **({"lookups": lookups} if lookups else {}),
            **({"table": self.table} if self.table else {}),
            **({"tapes": list(self.tapes)} if self.tapes else {}),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The intent that `to_json` wrote."""
        placed, columns = value.get("placed"), value.get("columns")
        region = parse_region(value["region"])
        lookups: Mapping[str, Any] = value.get("lookups") or {}
        return cls(
            request=Request.from_json(value["request"]),
            cut=int(value["cut"]),
            region=region,
            reached=Antichain.of(map(Time, value["reached"]), region.box.order),
            code=value["code"],
            placed=None if placed is None else Placement(**placed),
            keys=tuple(value["keys"]),
            columns=None if columns is None else tuple(columns),
            target_version=int(value["target_version"]),
            certificate=Certificate.from_json(value["certificate"]),
            cuts=value.get("cuts") or {},
            lookups={name: Pin.from_json(pin) for name, pin in lookups.items()},
            table=value.get("table") or "",
            tapes=tuple(value.get("tapes") or ()),
        )
