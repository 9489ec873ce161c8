"""Arguments of operators that are templates: given, so that they may not render to nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from capstan.airflow.tasks.failures import as_task
from capstan.core.config.request_fields import is_empty
from capstan.errors import InvalidRequestError

_ARGUMENTS = frozenset(
    {"stream", "target", "replay", "workers", "since", "until", "fields", "runs", "table"}
    | {"attempt", "lake", "config"}
)


class RenderedArguments:
    """An operator whose arguments are not left out by a template that renders to nothing.

    Without its `until`, for example, a replay would play all times.
    """

    def _do_render_template_fields(
        self, parent: Any, template_fields: Iterable[str], *rest: Any, **named: Any
    ) -> None:
        """Render, and refuse what has become empty; mapped tasks are rendered by this, too."""
        names = list(template_fields)
        given = {name: getattr(parent, name) for name in names if name in _ARGUMENTS}
        super()._do_render_template_fields(parent, names, *rest, **named)  # type: ignore[misc]
        if parent is self:
            with as_task():
                for name, before in given.items():
                    require_rendered(name, before, getattr(parent, name))


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
