"""The DAGs that a person starts: roll back, verify, put back, unlock, pause backfills."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from airflow.sdk import DAG, Context, Param, XComArg

from capstan.airflow.dags import docs
from capstan.airflow.dags.defaults import new_dag, task_arguments
from capstan.airflow.dags.form import filled, number_field, switch, workers_field
from capstan.airflow.lake_files import labels_by_stream
from capstan.airflow.operators.jobs import PlanRollbackOperator, RollbackOperator
from capstan.airflow.operators.submit import CapstanSubmitOperator
from capstan.airflow.settings import Settings
from capstan.airflow.tasks.capstan_operator import CapstanOperator
from capstan.airflow.tasks.failures import as_task
from capstan.airflow.tasks.maker import maker
from capstan.storage.ledger.made_by import making


class StreamJobOperator(CapstanSubmitOperator):
    """Submits a job whose request is the run's parameters: `verify` or `put_back` of a stream."""

    def execute(self, context: Context) -> dict[str, object]:  # type: ignore[override]
        """Submit the job, and return its result."""
        self.request = filled(context["params"])
        return super().execute(context)


class UnlockOperator(CapstanOperator):
    """Declares a run dead, and releases its claim, without Spark.

    The XCom has the `run`, and the `attempt` that was unlocked; 0 if it held no claim.
    """

    ui_color = "#f3ecd2"

    def execute(self, context: Context) -> dict[str, object]:
        """Release the claim."""
        from capstan.replay.run import unlock
        from capstan.storage.lake import Lake

        run = str(context["params"]["run"]).strip()
        with as_task():
            lake = Lake.at(self.settings.lake)
            lake.require()
            attempt = unlock(lake, run)
        done = f"the claim of attempt {attempt} is released" if attempt else "it had no claim"
        self.log.info("run %s: %s", run, done)
        return {"run": run, "attempt": attempt}


class PauseOperator(CapstanOperator):
    """Pauses the backfills of a replay, or lets them go on, without Spark.

    The XCom has the `replay`, whether its backfills are `paused`, and since when, by whom and why.
    """

    ui_color = "#f3ecd2"

    def execute(self, context: Context) -> dict[str, object]:
        """Write who pauses them, or has them go on."""
        from capstan.backfill.pauses import Pause, set_paused
        from capstan.storage.lake import Lake

        given = filled(context["params"])
        with as_task(), making(maker(context)):
            replay = self.settings.declarations.replay(str(given["replay"])).name
            lake = Lake.at(self.settings.lake)
            lake.require()
            because = str(given.get("because") or "")
            set_paused(lake, replay, paused=not given.get("resume"), because=because)
            pause = Pause.read(lake, replay)
        self.log.info("backfills of replay %s %s", replay, f"are {pause}" if pause else "may run")
        return {"replay": replay, "paused": False} if pause is None else dict(pause.to_json())


def rollback_dags(settings: Settings) -> Iterator[DAG]:
    """The DAG that rolls back a run; none if no stream is declared."""
    if settings.declarations.streams:
        with _by_hand(settings, "rollback", _run_field()) as dag:
            plan = PlanRollbackOperator(**task_arguments(settings, "plan", text="reversible"))
            request = XComArg(plan)
            rollback = RollbackOperator(request=request, **task_arguments(settings, "rollback"))
            plan >> rollback
        yield dag


def repair_dags(settings: Settings) -> Iterator[DAG]:
    """The DAGs of a stream, a run and a replay that need no plan; none if no stream is declared."""
    streams = list(settings.declarations.streams)
    if not streams:
        return
    chosen = {
        **_stream_field(streams),
        "workers": workers_field(labels_by_stream(settings)),
        "deep": switch("Deep", "Also compare all records with their counts and hashes.", None),
    }
    with _by_hand(settings, "verify", chosen) as dag:
        StreamJobOperator(app="verify", **task_arguments(settings, "verify"))
    yield dag
    with _by_hand(settings, "put_back", {**_stream_field(streams), **_late_fields()}) as dag:
        StreamJobOperator(app="put_back", **task_arguments(settings, "put_back"))
    yield dag
    with _by_hand(settings, "unlock", _run_field()) as dag:
        UnlockOperator(**task_arguments(settings, "unlock"))
    yield dag
    replays = list(settings.declarations.replays)
    if replays:
        with _by_hand(settings, "pause", _pause_fields(replays)) as dag:
            PauseOperator(**task_arguments(settings, "pause"))
        yield dag


def _stream_field(streams: list[str]) -> dict[str, Param]:
    return {"stream": Param(streams[0], type="string", enum=streams, title="Stream")}


def _late_fields() -> dict[str, Param]:
    """The fields that drop or repair records instead of putting late ones back."""
    section = "Drop or repair records"
    texts = {
        "because": ("Because", "Why records are dropped; then none is put back."),
        "fix": ("Fix", "SQL that repairs records of one reason, which then return."),
        "reason": ("Reason", "Only records with this reason, as `capstan late` shows it."),
        "cause": ("Cause", "Only records with this cause, or of this column."),
        "file": ("File", "Only records of this file."),
    }
    fields = {
        name: Param(
            None, type=["string", "null"], title=title, description_md=about, section=section
        )
        for name, (title, about) in texts.items()
    }
    again = "The batch whose dropped records are open again; without the other fields."
    only = "Write nothing: the result says what *Fix* would repair, and what stays wrong."
    return {
        **fields,
        "undrop": number_field("Undrop", again, section),
        "dry_run": switch("Dry run", only, section),
    }


def _pause_fields(replays: list[str]) -> dict[str, Param]:
    about = "Why they are paused, or go on."
    return {
        "replay": Param(replays[0], type="string", enum=replays, title="Replay"),
        "resume": switch("Resume", "Let backfills go on, instead of pausing them.", None),
        "because": Param(None, type=["string", "null"], title="Because", description_md=about),
    }


def _run_field() -> dict[str, Param]:
    return {
        "run": Param(
            type="string",
            minLength=1,
            title="Run",
            description_md="The run's name, from the page *Capstan* or `capstan runs`.",
        )
    }


def _by_hand(settings: Settings, kind: str, params: Mapping[str, Param]) -> DAG:
    about, doc_md = docs.REPAIRS[kind]
    return new_dag(
        settings,
        kind,
        description=about,
        doc_md=doc_md,
        schedule=None,
        max_active_runs=4,
        # Only a person starts it, and should not have to unpause it first.
        is_paused_upon_creation=False,
        params=dict(params),
        tag="repair",
    )
