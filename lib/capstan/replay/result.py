"""Results of a replay, a publish and a rollback."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from capstan.core.json_object import Json
from capstan.errors.translation import translating
from capstan.storage.ledger.certificate import PUBLIC_KEYS, Certificate

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


@translating
@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The result of a replay.

    Attributes:
        certificate: What was played, verified and published; as far as it is known when the run
            waits. None for a followed replay that has nothing to do and has never published.
        unchanged: Whether an earlier run had published the same, and nothing was done.
    """

    certificate: Certificate | None
    unchanged: bool = False
    session: SparkSession | None = field(default=None, repr=False, compare=False)

    @property
    def name(self) -> str:
        """The run's name, which `audit` and `rollback` take; empty without a certificate."""
        return "" if self.certificate is None else self.certificate.run or ""

    def to_spark(self) -> DataFrame:
        """The target at the version that this run published."""
        from capstan.storage.delta import delta

        assert self.session is not None
        return delta.load(self.session, *self._published)

    def to_arrow(self) -> pa.Table:
        """The target at the version that this run published.

        Read without Spark, unless the table has features that only Spark reads.
        """
        from capstan.storage.delta import delta

        table = delta.open_table(*self._published)
        return table.to_pyarrow_table() if table.is_plain else self.to_spark().toArrow()

    @property
    def _published(self) -> tuple[str, int | None]:
        assert self.certificate is not None
        return self.certificate.target_path, self.certificate.target_version

    def to_json(self) -> dict[str, object]:
        """The certificate, as the command line's `--json` prints it: public keys first."""
        known = {} if self.certificate is None else self.certificate.to_json()
        return {**dict.fromkeys(PUBLIC_KEYS), **known, "unchanged": self.unchanged}

    @classmethod
    def from_json(cls, value: Json) -> ReplayResult:
        """The result that `to_json` wrote, such as the XCom of a replay."""
        known = any(value.get(key) is not None for key in ("run", "stream"))
        unchanged = value.get("unchanged", value.get("stood"))  # As earlier versions named it.
        return cls(Certificate.from_json(value) if known else None, bool(unchanged))


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackResult:
    """A run that was rolled back, and what it had replayed."""

    run: str
    stream: str
    target: str
    workers: object
    since: object
    until: object
    target_path: str
    target_version: int
    rolled_back: bool = True
    unchanged: bool  # Whether it was already rolled back.

    @classmethod
    def from_json(cls, value: Json) -> RollbackResult:
        """The result of the job `rollback`."""
        given = {"unchanged": value.get("stood"), **value}  # As earlier versions named it.
        return cls(**{field.name: given[field.name] for field in fields(cls)})
