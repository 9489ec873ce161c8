"""The DAG `capstan_replay`, triggered by hand with a form; and the tasks that all replays share."""

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
    """Submits a replay; the events of its target's asset carry the certificate."""

    operator_extra_links = (RunLink(), CertificateLink(), TargetLink())

    def __init__(self, *, setting: Settings, app: str = "replay", **rest: object) -> None:
        """Prepare a replay; the target is an outlet, or becomes known through an alias."""
        super().__init__(app=app, setting=setting, told=certified, **rest)  # type: ignore[arg-type]
        self.asset_name: str | None = None
        self.run_name: str | None = None

    def tell_assets(self, context: Context, result: Mapping[str, object]) -> None:
        """Tell the target's asset what was played into it; nothing while that only waits."""
        self.run_name = str(result.get("run") or "")
        if result.get("published") is False:
            # A task that succeeds changes its outlets, whether it tells them anything or not.
            self.outlets = []
            return
        super().tell_assets(context, result)
        asset = tell_tables(context, self.outlets, result.get("target"), certified(result))
        self.asset_name = asset.name


class PublishOperator(ReplayOperator):
    """Submits the publish of a run that a person has approved, or writes down that it is rejected.

    A rejected run fails the task with `CAP-REJECTED`, without a retry.
    """

    def __init__(self, *, setting: Settings, **rest: object) -> None:
        """Prepare a publish; the request is the output of an `ApproveOperator`."""
        super().__init__(setting=setting, app="publish", **rest)


def replay_tasks(
    setting: Settings,
    asked: Callable[[Context], Mapping[str, object]],
    outlet: Asset | AssetAlias,
    replay: Replay | None = None,
) -> PlanReplayOperator:
    """Plan, replay, approve, publish, certificate: the tasks of a replay; the first of them.

    Where a run asks for no approval, `replay` publishes, and `approve` and `publish` are skipped.

    Args:
        setting: Where Capstan works.
        asked: Gives the request's fields of a run.
        outlet: What the replay changes.
        replay: The declared replay, which says whom to tell of failures.
    """
    place = ("replays", replay.name, "notify") if replay is not None else ()
    usual = task_defaults(setting, replay.notify if replay else (), place)
    if replay is None:
        # Whose run it is, is known when it runs; the error's own line stays the last.
        usual["on_failure_callback"].insert(-1, of_chosen(setting))
    plan = PlanReplayOperator(
        task_id="plan", setting=setting, asked=asked, doc_md=docs.TASKS["plan"], **usual
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


def replay_dags(setting: Settings) -> Iterator[DAG]:
    """The DAG that replays what its form asks for; none where no stream is declared."""
    if not setting.declarations.streams:
        return
    with DAG(
        DAG_ID,
        description="Replay chosen workers and times of a stream into a table",
        doc_md=docs.REPLAY + docs.FAILURES,
        schedule=None,
        start_date=timetables.BEGINNING,
        catchup=False,
        # Those that wait for a person, or for times, are among them.
        max_active_runs=32,
        # Nothing starts it but a person, who should not have to find out why it does not run.
        is_paused_upon_creation=False,
        params=replay_form(setting),
        tags=["capstan", "replay"],
    ) as dag:
        replay_tasks(setting, _asked, REPLAYED)
    yield dag


def _asked(context: Context) -> Mapping[str, object]:
    return dict(context["params"])
