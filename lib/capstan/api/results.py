"""What the methods of a `Context` return: typed, as JSON, and as tables in notebooks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from capstan.errors.translation import translating
from capstan.notebook import facts_html, rows_html

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from capstan.audit import Audit
    from capstan.core.times import TimeType
    from capstan.replay.planning.plan import Plan
    from capstan.replay.preview import Preview
    from capstan.replay.run import ReplayResult
    from capstan.storage.ledger.certificate import Certificate
    from capstan.storage.tape.tape import Tape
    from capstan.verify import Verification

_CERTIFICATE = (
    "stream", "cut", "workers", "since", "until", "records", "times", "fingerprint", "complete",
    "frontier", "late", "transform", "pipeline", "mode", "target", "target_path",
    "target_version", "published",
)  # fmt: skip
_PLAN = (
    "stream", "cut", "workers", "since", "until", "frontier", "complete", "records", "times",
    "files", "files_all", "bytes", "late", "transform", "pipeline", "mode", "target", "stands",
    "held_by", "changed", "checks",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Listing(Sequence[Mapping[str, object]]):
    """Rows about the lake: its streams, or its runs.

    Attributes:
        title: What they are about.
        columns: The columns that a notebook shows.
        rows: The rows, each with at least those columns or none of them.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[Mapping[str, object], ...]

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Mapping[str, object]]:
        return iter(self.rows)

    def to_json(self) -> list[dict[str, object]]:
        """The rows, as the command line's `--json` prints them."""
        return [dict(row) for row in self.rows]

    def _repr_html_(self) -> str:
        return rows_html(self.title, self.columns, self.rows)


@dataclass(frozen=True, slots=True)
class StreamVerification:
    """Whether the recordings of a stream's workers are sound.

    Attributes:
        verification: A verdict per worker.
    """

    verification: Verification
    tape: Tape = field(repr=False)

    @property
    def valid(self) -> bool:
        """Whether every worker's recording is valid."""
        return self.verification.valid

    def raise_for_violations(self) -> StreamVerification:
        """Return this verification if every recording is valid.

        Raises:
            CheckFailedError: `CAP-VIOLATION` with the first violation.
        """
        self.verification.require_valid(self.tape)
        return self

    def to_json(self) -> dict[str, object]:
        """The verification, as the command line's `--json` prints it."""
        return self.verification.to_json(self.tape)

    def _repr_html_(self) -> str:
        value = self.to_json()
        verdicts = value["workers"]
        assert isinstance(verdicts, list)
        state = "valid" if self.valid else "NOT valid"
        title = f"{value['stream']}, commit {value['cut']}: {state}"
        return rows_html(title, ("label", "valid", "events", "records"), verdicts)


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """What a replay would read and write; `Context.replay` carries it out at the same cut.

    Attributes:
        preview: The plan, and what it would meet in the target.
        comparison: Rows that it would add, remove and change, if that was asked for.
    """

    preview: Preview
    comparison: Mapping[str, object] | None = None

    @property
    def complete(self) -> bool:
        """Whether no record of its times can arrive any more."""
        return self.preview.plan.complete

    @property
    def records(self) -> int:
        """How many records it plays."""
        return self.preview.content.records

    def to_json(self) -> dict[str, object]:
        """The plan, as the command line's `--json` prints it."""
        comparison = {} if self.comparison is None else {"diff": dict(self.comparison)}
        return {**self.preview.to_json(), **comparison}

    def _repr_html_(self) -> str:
        value = self.to_json()
        facts = {name: value.get(name) for name in _PLAN}
        return facts_html("Plan", facts | dict(self.comparison or {}))


@translating
@dataclass(frozen=True, slots=True)
class ReplayRun:
    """A replay that was carried out, with its certificate.

    Attributes:
        result: The certificate, and whether anything had to be done.
    """

    result: ReplayResult
    session: SparkSession = field(repr=False)

    @property
    def name(self) -> str:
        """The run's name, which `audit` and `rollback` take."""
        return str(self.to_json()["run"])

    @property
    def unchanged(self) -> bool:
        """Whether an earlier run stands, so that nothing was done."""
        return self.result.unchanged

    @property
    def certificate(self) -> Certificate | None:
        """What was played, verified and published.

        None for a followed replay that has nothing to do, and has never published.
        """
        return self.result.certificate

    def to_spark(self) -> DataFrame:
        """The target at the version that this run published."""
        from capstan.storage.delta import delta

        return delta.load(self.session, *self._published)

    def to_arrow(self) -> pa.Table:
        """The target at the version that this run published.

        Read without Spark, unless the table has features that only Spark reads.
        """
        from capstan.storage.delta import delta

        table = delta.open_table(*self._published)
        return table.to_pyarrow_table() if table.is_plain else self.to_spark().toArrow()

    def to_json(self) -> dict[str, object]:
        """The certificate, as the command line's `--json` prints it."""
        return self.result.to_json()

    @property
    def _published(self) -> tuple[str, int | None]:
        value = self.to_json()
        version = value["target_version"]
        return str(value["target_path"]), None if version is None else int(str(version))

    def _repr_html_(self) -> str:
        value = self.to_json()
        state = "unchanged: an earlier run stands" if self.unchanged else "done"
        return facts_html(f"{self.name}: {state}", {key: value.get(key) for key in _CERTIFICATE})


@dataclass(frozen=True, slots=True)
class AuditReport:
    """Whether a table holds exactly what a stream says.

    Attributes:
        subject: What was audited: run, stream, cut, target and version.
        audit: The comparison.
    """

    subject: Mapping[str, object]
    audit: Audit
    time_type: TimeType = field(repr=False)

    @classmethod
    def of(cls, plan: Plan, audit: Audit, version: int | None, **run: object) -> AuditReport:
        """The report on a plan's target.

        Args:
            plan: The plan of the audited rows.
            audit: The comparison.
            version: The audited version; None for the newest.
            run: Facts of the audited run, if it was one.
        """
        subject = {
            **run,
            "stream": plan.stream,
            "cut": plan.cut.commit,
            **({"cuts": dict(plan.cuts)} if plan.several else {}),
            "target": plan.request.into,
            "target_path": plan.target,
            "version": version,
        }
        return cls(subject, audit, plan.tape.time_type)

    @property
    def passed(self) -> bool:
        """Whether nothing differs, and every row passes every check."""
        return self.audit.passed

    def raise_for_differences(self) -> AuditReport:
        """Return this report if the audit has passed.

        Raises:
            CheckFailedError: `CAP-AUDIT` or `CAP-CHECK`.
        """
        self.audit.require_passed(str(self.subject.get("run") or self.subject["target"]))
        return self

    def to_json(self) -> dict[str, object]:
        """The audit, as the command line's `--json` prints it."""
        return {**self.subject, **self.audit.to_json(self.time_type)}

    def _repr_html_(self) -> str:
        value = self.to_json()
        findings = value.pop("findings")
        assert isinstance(findings, list)
        head = facts_html("Audit passed" if self.passed else "Audit FAILED", value)
        columns = tuple(findings[0]) if findings else ()
        return head + (rows_html("Findings", columns, findings) if findings else "")
