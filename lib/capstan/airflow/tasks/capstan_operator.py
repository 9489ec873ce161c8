"""What operators have in common: a lake and declarations, and arguments that are templates."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseOperator, Context, timezone
from airflow.sdk.configuration import conf

from capstan.airflow.settings import Settings, named_config, read_settings
from capstan.airflow.tasks.failures import as_task, set_usual
from capstan.core.config.request_fields import is_empty
from capstan.errors import InvalidRequestError

if TYPE_CHECKING:
    from capstan.airflow.tasks.lake_triggers import LakeTrigger

_ARGUMENTS = frozenset(
    {"stream", "target", "replay", "workers", "since", "until", "fields", "runs", "table"}
    | {"attempt", "lake", "config"}
)
_PARAMETERS = re.compile(r"\b(params|conf)\b")


class CapstanOperator(BaseOperator):
    """An operator with a lake and a declaration file.

    None of its arguments is left out by a template that renders to nothing. Without its `until`,
    for example, a replay would play all times.
    """

    named_by_run = False
    """Whether who triggers a run names its target: by a form, or by parameters in a template."""

    def __init__(
        self,
        *,
        settings: Settings | None = None,
        lake: str | None = None,
        config: str | None = None,
        streams: str | None = None,
        **rest: Any,
    ) -> None:
        """Create a task.

        Args:
            settings: The settings; by default those of the environment, read when the task runs.
            lake: The lake, if not that of the settings. Templated.
            config: The declaration file, if not that of the settings. Templated.
            streams: The former name of `config`.
            rest: Other arguments of an operator.
        """
        set_usual(rest)
        super().__init__(**rest)
        self.lake = lake
        self.config = named_config(config, streams)
        self._given = settings
        # When a task began to wait, of one that a trigger has woken.
        self._waits_since: datetime | None = None

    def waits_since(self, context: Context) -> datetime:
        """When the task began to wait, in this try; now if it has not waited."""
        rescheduled = context["ti"].get_first_reschedule_date(context)
        return self._waits_since or rescheduled or timezone.utcnow()

    def defer_to(
        self,
        trigger: Callable[..., LakeTrigger],
        since: datetime,
        interval: timedelta,
        patience: timedelta,
    ) -> NoReturn:
        """Leave the slot until a trigger fires, or the patience ends; then `execute` runs again."""
        made = trigger(
            lake=self.settings.lake,
            interval=interval.total_seconds(),
            since=since.isoformat(),
            until=(since + patience).isoformat(),
        )
        self.defer(trigger=made, method_name="resume")

    def resume(self, context: Context, event: str) -> object:
        """Execute again, as a task that waits since the time of a trigger's event."""
        self._waits_since = datetime.fromisoformat(event)
        return self.execute(context)

    @property
    @as_task()
    def settings(self) -> Settings:
        """The settings that a DAG has given, or of the environment; the task's own places win."""
        if self._given is not None and self.lake is None and self.config is None:
            return self._given
        dag = self.get_dag()
        dag_file = "dag.py" if dag is None else dag.fileloc
        return read_settings(dag_file, lake=self.lake, config=self.config)

    def _do_render_template_fields(
        self, parent: Any, template_fields: Iterable[str], *rest: Any, **named: Any
    ) -> None:
        """Render, and refuse what has become empty; mapped tasks are rendered by this, too."""
        names = list(template_fields)
        given = {name: getattr(parent, name) for name in names if name in _ARGUMENTS}
        super()._do_render_template_fields(parent, names, *rest, **named)
        if parent is self:
            self.named_by_run |= _reads_parameters(given)
            with as_task():
                for name, before in given.items():
                    require_rendered(name, before, getattr(parent, name))


def is_deferrable(given: bool | None) -> bool:
    """Whether an operator waits by a trigger: as given, or as Airflow has it for all operators."""
    usual = conf.getboolean("operators", "default_deferrable", fallback=False)
    return usual if given is None else given


def _reads_parameters(arguments: Mapping[str, Any]) -> bool:
    """Whether the target among arguments is a template that reads the parameters of a run."""
    fields = arguments.get("fields")
    targets = [arguments.get("target"), fields.get("into") if isinstance(fields, Mapping) else None]
    return any("{" in target and _PARAMETERS.search(target) for target in map(str, targets))


def require_rendered(name: str, given: object, rendered: object) -> None:
    """Check that an argument, and each of its parts, did not become empty."""
    if isinstance(given, Mapping) and isinstance(rendered, Mapping):
        for key, before in given.items():
            require_rendered(str(key), before, rendered.get(key))
    elif is_empty(rendered) and not is_empty(given):
        raise InvalidRequestError(
            "CAP-REQUEST",
            f"{name} renders to nothing: {str(given)[:80]!r} is {rendered!r}",
            f"give the template a value in each run; to have the default, leave {name} out",
            key=name,
        )
