"""The operator that fills the gaps of a declared replay."""

from __future__ import annotations

from collections.abc import Mapping

from airflow.sdk import Context

from capstan.airflow.assets import REPLAYED
from capstan.airflow.coverage_markdown import backfills_markdown
from capstan.airflow.operators.submit import CapstanSubmitOperator
from capstan.airflow.tasks.failures import as_task
from capstan.core.config.loading.validation import read_fields


class SubmitBackfillOperator(CapstanSubmitOperator):
    """Submits backfills; each published run emits an event of its target's asset."""

    def __init__(self, **rest: object) -> None:
        """Create a backfill task; its request names one replay, or several as `backfills`."""
        rest.setdefault("outlets", [REPLAYED])
        rest.setdefault("render", backfills_markdown)
        super().__init__(app="backfill", **rest)  # type: ignore[arg-type]


class BackfillOperator(SubmitBackfillOperator):
    """Submits the backfill of a declared replay: one app, a run for each stretch of gaps.

    The XCom lists the runs. Intervals whose rows are published already are not replayed.
    """

    template_fields = (
        "replay",
        "since",
        "until",
        "fields",
        *SubmitBackfillOperator.template_fields,
    )

    def __init__(
        self,
        *,
        replay: str,
        since: str | None = None,
        until: str | None = None,
        fields: Mapping[str, object] | None = None,
        **rest: object,
    ) -> None:
        """Create a backfill task.

        Args:
            replay: The declared replay. Templated.
            since: The first time; by default the replay's own. Templated.
            until: The end; by default the replay's own. Templated.
            fields: The other fields of `capstan.backfill.planner.BackfillRequest`, such as `chunk`
                and `keep_going`. Templated.
            rest: Arguments of a `CapstanSubmitOperator`, such as `lake` and `config`.
        """
        super().__init__(request={}, **rest)
        self.replay = replay
        self.since = since
        self.until = until
        self.fields = dict(fields or {})

    def execute(self, context: Context) -> dict[str, object]:  # type: ignore[override]
        """Submit the backfill, and return its runs."""
        from capstan.backfill.planner import BackfillRequest

        given = {"replay": self.replay, "since": self.since, "until": self.until, **self.fields}
        with as_task():
            self.request = read_fields(BackfillRequest, given)
        return super().execute(context)
