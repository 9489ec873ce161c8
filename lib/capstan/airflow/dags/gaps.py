"""The DAG `capstan_gaps`: reports missing and stale intervals of declared replays, and fills them.

It reports daily. It fills only when its parameter `fill` is set, in one Spark job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from airflow.sdk import DAG, Context, Param, XComArg

from capstan.airflow.dags import docs, timetables
from capstan.airflow.dags.defaults import new_dag, task_arguments
from capstan.airflow.dags.form import list_field, number_field, switch
from capstan.airflow.documents import gaps_document
from capstan.airflow.operators.jobs import SubmitBackfillOperator
from capstan.airflow.settings import Settings
from capstan.airflow.tasks.capstan_operator import CapstanOperator
from capstan.airflow.tasks.failures import as_task, skip_following
from capstan.airflow.tasks.job_operator import log_text
from capstan.core.config import Replay

if TYPE_CHECKING:
    from capstan.backfill.survey import Survey


class ListGapsOperator(CapstanOperator):
    """Reports gaps of declared replays from the index and the ledgers, without a JVM.

    XComs: `replays`, one entry per replay with interval counts by state and the uncovered
    intervals; `request`, the request of the job `backfill`; `count`, the number of backfills.
    Downstream tasks are skipped when there is nothing to fill, or `fill` is off.
    """

    template_fields = ("found",)
    overwrite_rtif_after_execution = True
    ui_color = "#f3ecd2"

    found = ""

    def execute(self, context: Context) -> dict[str, object]:
        """Look for gaps, and return the report with the request that fills them."""
        params = context["params"]
        with as_task():
            chosen = _chosen(self.settings, params.get("replays"))
            asked = {name: params.get(name) for name in ("since", "until", "what", "chunk")}
            named = bool(params.get("replays"))
            entries = [_entry(self.settings, each, named=named, **asked) for each in chosen]
        backfills = [fill for entry in entries for fill in entry.pop("fills")]  # type: ignore[attr-defined]
        self.found = log_text(gaps_document(entries))
        request = {"backfills": backfills}
        result = {"replays": entries, "request": request, "count": len(backfills)}
        if not backfills or not params.get("fill"):
            reason = "fill is off" if backfills else "nothing is missing"
            self.log.info("nothing is filled: %s", reason)
            raise skip_following(context, result)
        return result


def gaps_dags(settings: Settings) -> Iterator[DAG]:
    """The DAG that looks for gaps, daily and by hand; none if no replay is declared."""
    if not settings.declarations.replays:
        return
    with new_dag(
        settings,
        "gaps",
        description="Which intervals of the declared replays are missing or stale",
        doc_md=docs.GAPS,
        schedule=timetables.daily(),
        max_active_runs=1,
        params=_form(settings),
        tag="backfill",
    ) as dag:
        gaps = ListGapsOperator(multiple_outputs=True, **task_arguments(settings, "gaps"))
        fill = SubmitBackfillOperator(
            request=XComArg(gaps, "request"), **task_arguments(settings, "fill")
        )
        gaps >> fill
    yield dag


def _chosen(settings: Settings, names: list[str] | None) -> list[Replay]:
    """The replays to report on."""
    declared = settings.declarations
    if names:
        return [declared.replay(name) for name in names]
    return [replay for replay in declared.replays.values() if replay.has_intervals]


def _entry(
    settings: Settings,
    replay: Replay,
    *,
    named: bool,
    since: str | None = None,
    until: str | None = None,
    what: str | None = None,
    chunk: int | None = None,
) -> dict[str, object]:
    """The report on one replay: interval counts, stretches, and backfill requests in `fills`."""
    from capstan.airflow.lake_queries import approving_replay
    from capstan.backfill.hold import why_held
    from capstan.backfill.interval import stretches
    from capstan.backfill.survey import IntervalState, survey
    from capstan.errors import CapstanError
    from capstan.storage.lake import Lake

    about: dict[str, object] = {"replay": replay.name, "target": replay.target, "fills": []}
    lake = Lake.at(settings.lake)
    try:
        found = survey(lake, settings.declarations, replay.name, since=since, until=until)
    except CapstanError as error:
        if since is not None or until is not None:
            raise
        # Also for a tape that cannot be read: the other replays are still reported.
        return {**about, **error.summary()}
    about |= {"cut": found.plan.inputs.cut.commit, "counts": dict(found.counts)}
    about["stretches"] = [
        {**stretch[0].to_json(), "until": stretch[-1].until, "intervals": len(stretch)}
        for stretch in stretches(found.intervals)
        if stretch[0].state not in (IntervalState.COVERED, IntervalState.INCOMPLETE)
    ]
    if replay.approve:
        return {**about, "not_filled": "its runs need approval"}
    other = approving_replay(settings, replay.target)
    if other is not None:
        problem = f"replay {other.name} requires approval of every run into its table"
        return {**about, "not_filled": problem}
    held = None if named else why_held(lake, replay)
    if held is not None:
        # The others do not wait for it.
        return {**about, "not_filled": held.message}
    fills, problems = _fills(found, since=since, until=until, what=what, chunk=chunk)
    return {**about, "fills": fills} | ({"not_filled": "; ".join(problems)} if problems else {})


def _fills(
    survey: Survey, *, what: str | None, **asked: object
) -> tuple[list[dict[str, object]], list[str]]:
    """Requests of the job `backfill` for a replay, and the problems that rule out others."""
    # The cut is pinned, so that a retry of the job is the next attempt of the same runs.
    from capstan.backfill.planner import BackfillMode, BackfillRequest, plan_replays
    from capstan.core.config.loading.validation import read_request
    from capstan.errors import InvalidRequestError

    inputs = survey.plan.inputs
    cuts = {"cuts": dict(inputs.cuts)} if inputs.several else {"as_of": inputs.cut.commit}
    fills: list[dict[str, object]] = []
    problems: list[str] = []
    for mode in (BackfillMode.GAPS, BackfillMode.STALE) if what is None else (BackfillMode(what),):
        request = {
            "replay": survey.declared.name,
            "what": str(mode),
            **{name: value for name, value in asked.items() if value is not None},
            **cuts,
            "keep_going": True,
        }
        try:
            replays = plan_replays(survey, read_request(BackfillRequest, request))
        except InvalidRequestError as error:
            problems.append(f"{error.message} ({error.hint})")
        else:
            fills += [request] if replays else []
    return fills, problems


def _form(settings: Settings) -> Mapping[str, Param]:
    return {
        "fill": switch("Fill", "Replay missing intervals, then stale ones.", None),
        "replays": list_field(
            "Replays",
            "Declared replays. Empty: all that have a range or a schedule.",
            None,
            examples=list(settings.declarations.replays),
        ),
        "since": _bound("Since", "The first time; by default that of each replay."),
        "until": _bound("Until", "The first time after; by default that of each replay."),
        "what": Param(
            None,
            type=["string", "null"],
            enum=[None, "gaps", "stale", "failed"],
            values_display={"None": "missing intervals, then stale ones"},
            title="What",
            description_md="Which intervals to fill: missing, stale, or last failed ones.",
        ),
        "chunk": number_field(
            "Chunk", "At most this many intervals per run. Empty: as declared.", None, 1
        ),
    }


def _bound(title: str, description: str) -> Param:
    return Param(None, type=["string", "null"], title=title, description_md=description)
