"""The task that shows a run's certificate: in its log, on its page and in its XCom."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from airflow.sdk import BaseOperator, Context

from capstan.airflow.markdown import certificate_markdown
from capstan.airflow.tasks.failures import TaskRefusedError, set_usual

Render = Callable[[Mapping[str, object]], str]


class CertificateOperator(BaseOperator):
    """Shows the result of another task as markdown; its XCom is that text.

    The text is on the task's page under Rendered Templates, where links of other tasks lead.
    """

    template_fields = ("certificate", "result")
    template_fields_renderers = {"certificate": "md", "result": "json"}  # noqa: RUF012
    overwrite_rtif_after_execution = True
    ui_color = "#dcefd6"

    def __init__(
        self, *, result: object, render: Render = certificate_markdown, **rest: object
    ) -> None:
        """Create a task that shows another task's output.

        Args:
            result: The output; from a list, the first one that exists.
            render: Renders it as markdown.
            rest: Other arguments of an operator.
        """
        set_usual(rest)
        super().__init__(**rest)  # type: ignore[arg-type]
        self.result = result
        self.certificate = ""
        self._render_result = render

    def execute(self, context: Context) -> str:
        """Show the result, and return its text."""
        outputs = self.result if isinstance(self.result, list) else [self.result]
        result = next((output for output in outputs if isinstance(output, Mapping)), None)
        if result is None:
            raise TaskRefusedError("CAP-RESULT: the previous task left no result (run it again)")
        self.certificate = self._render_result(result)
        for line in self.certificate.splitlines():
            self.log.info("%s", line)
        return self.certificate
