"""What a person can do from a page: each action triggers a DAG, and names the same command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlencode

from capstan.airflow.dags.form import NOT_IN_FORM
from capstan.airflow.settings import dag_id
from capstan.core.config.help import fields_of
from capstan.core.json_object import Json
from capstan.errors.shell_command import shell_line
from capstan.replay.planning.request import Request
from capstan.reporting.coverage_view import Coverage
from capstan.reporting.run_view import RunView
from capstan.reporting.stream_view import StreamHistory


@dataclass(frozen=True, slots=True)
class Action:
    """A DAG run that a page can trigger.

    Attributes:
        title: The text of the button.
        about: What it does, in a sentence.
        kind: The kind of the DAG, such as `rollback`.
        conf: The parameters of the DAG run.
        command: The command that does the same.
        confirm: What has to be ticked before; empty for nothing.
        fields: Texts to fill in, as parameters and options of the command: titles by name.
        paused: Whether the DAG is paused, so that its runs wait.
        may_unpause: Whether the user may unpause it.
    """

    title: str
    about: str
    kind: str
    conf: Json
    command: str
    confirm: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)
    paused: bool = False
    may_unpause: bool = False

    @property
    def dag(self) -> str:
        """The id of the DAG."""
        return dag_id(self.kind)


def of_run(view: RunView) -> Iterator[Action]:
    """The actions for a run."""
    run = view.run
    if view.state == "published":
        yield Action(
            "Audit now",
            "Compares the rows that it published with the tape again; nothing is changed.",
            "audit",
            {"runs": [run]},
            shell_line("capstan", "audit", run),
        )
        yield Action(
            "Roll back",
            "The previous rows come back in a new version of the table; rows that others wrote "
            "since stay.",
            "rollback",
            {"run": run},
            shell_line("capstan", "rollback", run),
            f"Roll back what {run} published",
        )
    if view.holds and view.state not in ("audited", "approved"):
        yield Action(
            "Unlock",
            "Declares the run dead, and releases its claim, so that others can have its range.",
            "unlock",
            {"run": run},
            shell_line("capstan", "unlock", run),
            f"Nothing works on {run} any more",
        )


def of_stream(view: StreamHistory) -> Iterator[Action]:
    """The actions for a captured stream."""
    name = view.name
    yield Action(
        "Verify all",
        "Checks the recordings against the rules, and all records against their events.",
        "verify",
        {"stream": name, "deep": True},
        shell_line("capstan", "verify", name, "--deep"),
    )
    waiting = view.late.get("late", 0)
    if waiting:
        yield Action(
            "Put late records back",
            f"Puts {waiting:,} late records on the tape, at the frontier, once each.",
            "put_back",
            {"stream": name},
            shell_line("capstan", "late", name, "--put-back"),
            f"Put the late records of {name} back",
        )
    yield Action(
        "Maintain",
        "Merges small files, and deletes those that nothing needs; no row changes.",
        "maintain",
        {"streams": [name]},
        shell_line("capstan", "maintain", name),
    )


def of_replay(view: Coverage) -> Iterator[Action]:
    """The actions for a declared replay: its pause, its gaps, and its stale intervals."""
    declared = view.declared
    resume = view.pause is not None
    yield Action(
        "Resume" if resume else "Pause",
        "Lets backfills go on where they were."
        if resume
        else "Runs of backfills that are at work go on to their end, and no other begins.",
        "pause",
        {"replay": declared.name, "resume": resume},
        shell_line("capstan", "backfill", declared.name, "--resume" if resume else "--pause"),
        fields={"because": "Because"},
    )
    if resume or declared.approve:
        # Of the latter, a person looks at each of its runs: they begin in the form.
        return
    bounds = {"since": "From", "until": "Until"}
    missing = sum(view.counts.get(state, 0) for state in ("gap", "failed", "changed", "dead"))
    for what, count, title, about in (
        ("gaps", missing, "Fill gaps", "Replays missing intervals, in one job."),
        ("stale", view.counts.get("stale", 0), "Redo stale intervals",
         "Replays intervals that were written with other code, in one job."),
    ):  # fmt: skip
        if count:
            yield Action(
                title,
                f"{about} Without a range, all of them. To choose one, drag over its cells in the "
                "calendar, or click the first and the last with the Shift key.",
                "gaps",
                {"fill": True, "replays": [declared.name], "what": what},
                shell_line("capstan", "backfill", declared.name, f"--{what}"),
                fields=bounds,
            )


def again(view: RunView) -> str:
    """The query of the form that is filled in as the request of a run; empty without one."""
    names = (field.name for field in fields_of(Request) if field.name not in NOT_IN_FORM)
    given = {name: view.request[name] for name in names if view.request.get(name)}
    return urlencode({name: _texts(value) for name, value in given.items()}, doseq=True)


def _texts(value: object) -> object:
    """A value as the form has it: a mapping as `name=value, name=value`."""
    if isinstance(value, Mapping):
        listed = (f"{name}={_joined(each)}" for name, each in value.items())
        return ", ".join(listed)
    return "true" if value is True else value


def _joined(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
