"""The task that shows a run's certificate: in its log, its rendered page and its XCom."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from airflow.sdk import BaseOperator, Context

from capstan.airflow.failing import TaskRefusedError
from capstan.airflow.showing import certificate_markdown

Show = Callable[[Mapping[str, object]], str]


class CertificateOperator(BaseOperator):
    """Shows the result of another task as markdown; its XCom is that text.

    The text is on the task's page under Rendered Templates, where links of other tasks lead.
    """

    template_fields = ("certificate", "result")
    template_fields_renderers = {"certificate": "md", "result": "json"}  # noqa: RUF012
    overwrite_rtif_after_execution = True
    ui_color = "#dcefd6"

    def __init__(
        self, *, result: object, show: Show = certificate_markdown, **rest: object
    ) -> None:
        """Prepare a task that shows `result`, another task's output, by `show`."""
        super().__init__(**rest)  # type: ignore[arg-type]
        self.result = result
        self.certificate = ""
        self._show = show

    def execute(self, context: Context) -> str:
        """Show the result; the text."""
        if not isinstance(self.result, Mapping):
            raise TaskRefusedError("CAP-RESULT: the task before has left no result (run it again)")
        self.certificate = self._show(self.result)
        for line in self.certificate.splitlines():
            self.log.info("%s", line)
        return self.certificate
