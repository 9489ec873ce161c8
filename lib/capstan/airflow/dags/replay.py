"""The DAG `capstan_replay`, triggered by hand with a form, and the tasks of all replay DAGs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from airflow.sdk import DAG, Asset, AssetAlias, Context, TriggerRule, XComArg

from capstan.airflow.assets import REPLAYED, certified, tell_tables
from capstan.airflow.dags import docs, timetables
from capstan.airflow.dags.form import replay_form
from capstan.airflow.dags.notifications import of_chosen
from capstan.airflow.dags.task_defaults import task_defaults
from capstan.airflow.operators.approve import ApproveOperator
from capstan.airflow.operators.certificate import CertificateOperator
from capstan.airflow.operators.links import CertificateLink, RunLink, TargetLink
from capstan.airflow.operators.plan import PlanReplayOperator
from capstan.airflow.operators.submit import CapstanSubmitOperator
from capstan.airflow.settings import Settings
from capstan.core.config import Replay

DAG_ID = "capstan_replay"


class ReplayOperator(CapstanSubmitOperator):
    """Submits a replay; the event of its target's asset carries the certificate."""

    operator_extra_links = (RunLink(), CertificateLink(), TargetLink())

    def __init__(self, *, setting: Settings, app: str = "replay", **rest: object) -> None:
        """Create a replay task; the target is an outlet, or is added to an alias at run time."""
        super().__init__(app=app, setting=setting, asset_extra=certified, **rest)  # type: ignore[arg-type]
        self.asset_name: str | None = None
        self.run_name: str | None = None

    def tell_assets(self, context: Context, result: Mapping[str, object]) -> None:
        """Emit the event of the target's asset; none while the run waits for approval."""
        self.run_name = str(result.get("run") or "")
        if result.get("published") is False:
            # Airflow emits an event for every outlet of a task that succeeds.
            self.outlets = []
            return
        super().tell_assets(context, result)
        asset = tell_tables(context, self.outlets, result.get("target"), certified(result))
        self.asset_name = asset.name


class PublishOperator(ReplayOperator):
    """Submits the publish of an approved run, or records its rejection.

    A rejected run fails the task with `CAP-REJECTED`, without a retry.
    """

    def __init__(self, *, setting: Settings, **rest: object) -> None:
        """Create a publish task; its request is the output of an `ApproveOperator`."""
        super().__init__(setting=setting, app="publish", **rest)


def replay_tasks(
    setting: Settings,
    fields: Callable[[Context], Mapping[str, object]],
    outlet: Asset | AssetAlias,
    replay: Replay | None = None,
) -> PlanReplayOperator:
    """Create the tasks of a replay: plan, replay, approve, publish, certificate.

    If a run needs no approval, `replay` publishes, and `approve` and `publish` are skipped.

    Args:
        setting: The settings.
        fields: Gives the fields of a run's request.
        outlet: The asset that the replay changes.
        replay: The declared replay, which names notifiers.

    Returns:
        The first task.
    """
    declared_at = ("replays", replay.name, "notify") if replay is not None else ()
    usual = task_defaults(setting, replay.notify if replay else (), declared_at)
    if replay is None:
        # The run's replay is known at run time only; the error's own line stays last.
        usual["on_failure_callback"].insert(-1, of_chosen(setting))
    plan = PlanReplayOperator(
        task_id="plan", setting=setting, fields=fields, doc_md=docs.TASKS["plan"], **usual
    )
    replayed = ReplayOperator(
        task_id="replay",
        setting=setting,
        request=XComArg(plan, "request"),
        records=XComArg(plan, "records"),
        outlets=[outlet],
        doc_md=docs.TASKS["replay"],
        **usual,
    )
    approve = ApproveOperator(
        task_id="approve", result=replayed.output, doc_md=docs.TASKS["approve"], **usual
    )
    published = PublishOperator(
        task_id="publish",
        setting=setting,
        request=approve.output,
        records=XComArg(plan, "records"),
        outlets=[outlet],
        doc_md=docs.TASKS["publish"],
        **usual,
    )
    certificate = CertificateOperator(
        task_id="certificate",
        result=[published.output, replayed.output],
        trigger_rule=TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS,
        doc_md=docs.TASKS["certificate"],
        **usual,
    )
    plan.without_approval = (approve.task_id, published.task_id)
    plan >> replayed >> approve >> published >> certificate
    return plan


def declared_fields(replay: Replay, context: Context) -> dict[str, object]:
    """The request fields of a run of a declared replay; `lake_queries.resolve` adds the others."""
    switches = ("adopt", "direct", "dry_run", "diff")
    return {
        "stream": replay.stream,
        "into": replay.target,
        "mode": str(replay.mode),
        "replay": replay.name,
        **{name: bool(context["params"].get(name)) for name in switches},
    }


def replay_dags(setting: Settings) -> Iterator[DAG]:
    """The DAG that replays what its form requests; none if no stream is declared."""
    if not setting.declarations.streams:
        return
    with DAG(
        DAG_ID,
        description="Replay chosen workers and times of a stream into a table",
        doc_md=docs.REPLAY + docs.FAILURES,
        schedule=None,
        start_date=timetables.BEGINNING,
        catchup=False,
        # Runs that wait for a person, or for times, count too.
        max_active_runs=32,
        # Only a person starts it, and should not have to unpause it first.
        is_paused_upon_creation=False,
        params=replay_form(setting),
        tags=["capstan", "replay"],
    ) as dag:
        replay_tasks(setting, lambda context: dict(context["params"]), REPLAYED)
    yield dag
