"""Names of attempts: how a plan, a job and the task that takes its result find each other."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Protocol

_LONGEST = 150


class Instance(Protocol):
    """A task instance, as far as the name of its attempt needs it."""

    dag_id: str
    run_id: str
    map_index: int | None


def attempt_name(ti: Instance, task_id: str) -> str:
    """The name of the attempt of a task in the DAG run of a task instance.

    In templates: `{{ macros.capstan.attempt_name(ti, "plan") }}`.

    Args:
        ti: Any task instance of the run. If its task is mapped, its index is part of the name.
        task_id: The task that the attempt is named after.
    """
    index = -1 if ti.map_index is None else ti.map_index
    parts = [ti.dag_id, task_id, ti.run_id, *([str(index)] if index >= 0 else [])]
    # Names have fewer characters than ids: the hash keeps two of them apart.
    digest = hashlib.sha256(json.dumps(parts).encode("utf-8")).hexdigest()[:12]
    readable = re.sub(r"[^A-Za-z0-9_]+", "-", "-".join(parts))[:_LONGEST].strip("-_") or "attempt"
    return f"{readable}-{digest}"


def attempt_template(task_id: str) -> str:
    """A template that renders to the same name of an attempt in every task of a DAG run."""
    return f"{{{{ macros.capstan.attempt_name(ti, {json.dumps(task_id)}) }}}}"
