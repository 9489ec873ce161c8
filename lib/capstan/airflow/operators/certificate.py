"""The task that shows a run's certificate: in its log, its rendered page and its XCom."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from airflow.sdk import BaseOperator, Context

from capstan.airflow.markdown import certificate_markdown
from capstan.airflow.operators.failures import TaskRefusedError, say_last

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
        """Prepare a task that shows another task's output.

        Args:
            result: The output; of a list of several the first one that there is.
            show: Makes markdown of it.
            rest: Anything that an operator takes.
        """
        rest.setdefault("on_failure_callback", say_last)
        super().__init__(**rest)  # type: ignore[arg-type]
        self.result = result
        self.certificate = ""
        self._show = show

    def execute(self, context: Context) -> str:
        """Show the result; the text."""
        several = self.result if isinstance(self.result, list) else [self.result]
        found = next((each for each in several if isinstance(each, Mapping)), None)
        if found is None:
            raise TaskRefusedError("CAP-RESULT: the task before has left no result (run it again)")
        self.certificate = self._show(found)
        for line in self.certificate.splitlines():
            self.log.info("%s", line)
        return self.certificate
