"""The operator that audits what runs have published, or any table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow.sdk import Context

from capstan.airflow.markdown import audits_markdown
from capstan.airflow.operators.submit import CapstanSubmitOperator
from capstan.airflow.tasks.failures import as_task
from capstan.core.config.loading.validation import read_field, read_fields
from capstan.core.config.request_fields import Names


class AuditOperator(CapstanSubmitOperator):
    """Submits an audit; the task fails with `CAP-AUDIT` if a table is not what the tape says.

    The XCom has each audit, failed ones included.
    """

    template_fields = ("runs", "stream", "table", "fields", *CapstanSubmitOperator.template_fields)

    def __init__(
        self,
        *,
        runs: Sequence[str] | str | None = None,
        stream: str | None = None,
        table: str | None = None,
        fields: Mapping[str, object] | None = None,
        **rest: object,
    ) -> None:
        """Create an audit task: of runs, or of a table against a stream.

        Args:
            runs: One run or several, such as the output of a replay task's XCom `run`. Templated.
            stream: The stream whose rows `table` should have. Templated.
            table: A table of the lake or of a catalog, a declared target, or a Delta path.
                Templated.
            fields: The other fields of `capstan.replay.standalone_audit.TableAudit`. Templated.
            rest: Arguments of a `CapstanSubmitOperator`, such as `lake` and `config`.
        """
        rest.setdefault("render", audits_markdown)
        super().__init__(app="audit", request={}, **rest)  # type: ignore[arg-type]
        self.runs = runs
        self.stream = stream
        self.table = table
        self.fields = dict(fields or {})

    def execute(self, context: Context) -> dict[str, object]:  # type: ignore[override]
        """Submit the audit, and return its result."""
        if self.runs is not None:
            with as_task():
                runs = read_field("runs", Names, self.runs)
            self.request = {"audits": [{"run": run} for run in runs]}
        else:
            # Loads Spark's packages, which nothing else here needs.
            from capstan.replay.standalone_audit import TableAudit

            given = {"stream": self.stream, "table": self.table, **self.fields}
            with as_task():
                self.request = read_fields(TableAudit, given)
        return super().execute(context)
