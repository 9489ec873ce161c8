"""The DAG `capstan_gaps`: reports missing and stale intervals of declared replays, and fills them.

It reports daily. It fills only when its parameter `fill` is set, in one Spark app.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from airflow.sdk import DAG, BaseOperator, Context, Param, XComArg
from airflow.sdk.exceptions import DownstreamTasksSkipped

from capstan.airflow.assets import REPLAYED, certified, tell_tables
from capstan.airflow.dags import docs, timetables
from capstan.airflow.dags.form import list_field, number_field, switch
from capstan.airflow.dags.task_defaults import task_defaults
from capstan.airflow.markdown import markdown_cell
from capstan.airflow.operators.failures import as_task, log_error_last
from capstan.airflow.operators.submit import CapstanSubmitOperator
from capstan.airflow.settings import Settings
from capstan.core.config import Replay
from capstan.reporting.formatting import workers_text

if TYPE_CHECKING:
    from capstan.backfill.survey import Survey

DAG_ID = "capstan_gaps"
_SHOWN = 100

ABOUT = """
Reports which intervals of each declared replay are covered, stale, missing, changed by others or
not complete yet. It covers the chosen replays, or all that have a range or a schedule.

**gaps** needs no Spark; its report is on its page, under *Rendered Templates*, and in its XCom.
With *Fill*, **fill** is one Spark app that replays missing intervals, then stale ones, each as a
run of its own. Replays into a table whose runs need approval are reported but not filled: replay
their intervals with `capstan_replay`.
"""


class ListGapsOperator(BaseOperator):
    """Reports gaps of declared replays from the index and the ledgers, without a JVM.

    XComs: `replays`, one entry per replay with interval counts by state and the uncovered
    intervals; `request`, the request of the app `backfill`; `count`, the number of backfills.
    Downstream tasks are skipped when there is nothing to fill, or `fill` is off.
    """

    template_fields = ("found",)
    template_fields_renderers = {"found": "md"}  # noqa: RUF012
    overwrite_rtif_after_execution = True
    ui_color = "#f3ecd2"

    def __init__(self, *, setting: Settings, **rest: object) -> None:
        """Create a task that looks for gaps of the replays that the run's parameters choose."""
        rest.setdefault("on_failure_callback", log_error_last)
        rest.setdefault("multiple_outputs", True)
        super().__init__(**rest)  # type: ignore[arg-type]
        self.found = ""
        self._setting = setting

    def execute(self, context: Context) -> dict[str, object]:
        """Look for gaps, and return the report with the request that fills them."""
        params = context["params"]
        with as_task():
            chosen = _chosen(self._setting, params.get("replays"))
            entries = [_entry(self._setting, replay, params.get("chunk")) for replay in chosen]
        backfills = [fill for entry in entries for fill in entry.pop("fills")]  # type: ignore[attr-defined]
        self.found = gaps_markdown(entries)
        for line in self.found.splitlines():
            self.log.info("%s", line)
        request = {"backfills": backfills}
        result = {"replays": entries, "request": request, "count": len(backfills)}
        if not backfills or not params.get("fill"):
            reason = "fill is off" if backfills else "nothing is missing"
            self.log.info("nothing is filled: %s", reason)
            context["ti"].xcom_push(key="return_value", value=result)
            following = context["task"].get_flat_relative_ids(upstream=False)
            raise DownstreamTasksSkipped(tasks=sorted(following))  # type: ignore[no-untyped-call]
        return result


class FillOperator(CapstanSubmitOperator):
    """Submits backfills; each published run emits an event of its target's asset."""

    def tell_assets(self, context: Context, result: Mapping[str, object]) -> None:
        """Emit events of the targets' assets, with their certificates."""
        for run in _runs(result):
            if run.get("published") and not run.get("stood"):
                tell_tables(context, self.outlets, run.get("target"), certified(run))


def gaps_dags(setting: Settings) -> Iterator[DAG]:
    """The DAG that looks for gaps, daily and by hand; none if no replay is declared."""
    if not setting.declarations.replays:
        return
    with DAG(
        DAG_ID,
        description="Which intervals of the declared replays are missing or stale",
        doc_md=ABOUT + docs.FAILURES,
        schedule=timetables.daily(),
        start_date=timetables.BEGINNING,
        catchup=False,
        max_active_runs=1,
        params=_form(setting),
        tags=["capstan", "backfill"],
    ) as dag:
        gaps = ListGapsOperator(
            task_id="gaps",
            setting=setting,
            doc_md="Looks for gaps, without Spark. The report is under *Rendered Templates*.",
            **task_defaults(setting, over_all=True),
        )
        fill = FillOperator(
            task_id="fill",
            app="backfill",
            setting=setting,
            request=XComArg(gaps, "request"),
            render=backfills_markdown,
            outlets=[REPLAYED],
            doc_md="Submits `capstan.jobs.backfill`; the XCom lists each run.",
            **task_defaults(setting, over_all=True),
        )
        gaps >> fill
    yield dag


def gaps_markdown(entries: Iterable[Mapping[str, object]]) -> str:
    """A report of gaps as markdown: interval counts per replay, then the uncovered intervals."""
    lines = ["## Coverage of declared replays", "", "| replay | target | intervals |"]
    lines.append("| --- | --- | --- |")
    parts: list[str] = []
    for entry in entries:
        counts = entry.get("counts")
        text = str(entry.get("message", ""))
        if isinstance(counts, Mapping):
            text = ", ".join(f"{n} {state}" for state, n in counts.items() if n) or "none"
        lines.append(_row(entry.get("replay"), entry.get("target"), text))
        parts += _uncovered(entry)
    return "\n".join(lines + parts)


def backfills_markdown(result: Mapping[str, object]) -> str:
    """The result of the app `backfill` as markdown."""
    lines = ["## Backfills", "", "| since | until | workers | records | version | run | |"]
    lines.append("| --- | --- | --- | --- | --- | --- | --- |")
    for run in _runs(result):
        status = "waiting for approval" if run.get("published") is False else "published"
        if run.get("stood"):
            status = "already published"
        if "error" in run:
            status = f"{run['error']}: {run.get('message')}"
        elif run.get("run") is None:
            status = "not started"
        workers = workers_text(run.get("workers"))
        shown = ", ".join(map(str, workers)) if isinstance(workers, list) else workers or "all"
        cells = (run.get(key) for key in ("records", "target_version", "run"))
        lines.append(_row(run.get("since"), run.get("until"), shown, *cells, status))
    return "\n".join(lines)


def _runs(result: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    backfills = result.get("backfills")
    for backfill in backfills if isinstance(backfills, list) else [result]:
        runs = backfill.get("runs")
        yield from runs if isinstance(runs, list) else ()


def _uncovered(entry: Mapping[str, object]) -> list[str]:
    """A table of a replay's uncovered stretches, and the reason when it is not filled."""
    stretches = entry.get("stretches")
    lines = []
    if isinstance(stretches, list) and stretches:
        lines = ["", f"### {entry.get('replay')}", "", "| since | until | state | workers |"]
        lines.append("| --- | --- | --- | --- |")
        for stretch in stretches[:_SHOWN]:
            missing = ", ".join(stretch["missing"])
            lines.append(_row(stretch["since"], stretch["until"], stretch["state"], missing))
        if len(stretches) > _SHOWN:
            lines += ["", f"and {len(stretches) - _SHOWN} more"]
    problem = entry.get("not_filled")
    return [*lines, "", f"Not filled: {problem}"] if problem else lines


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(markdown_cell, cells))} |"


def _chosen(setting: Settings, names: list[str] | None) -> list[Replay]:
    """The replays to report on.

    Raises:
        InvalidRequestError: `CAP-REPLAY` for a replay that is not declared.
    """
    declared = setting.declarations
    if names:
        return [declared.replay(name) for name in names]
    return [
        replay
        for replay in declared.replays.values()
        # A following replay replays each time once it is complete: it has no intervals.
        if replay.follow is None
        and (replay.since is not None or replay.until is not None or replay.schedule is not None)
    ]


def _entry(setting: Settings, replay: Replay, chunk: int | None) -> dict[str, object]:
    """The report on one replay: interval counts, stretches, and backfill requests in `fills`."""
    from capstan.airflow.lake_queries import approving_replay
    from capstan.backfill.interval import integer_ranges
    from capstan.backfill.survey import State, survey
    from capstan.errors import CapstanError
    from capstan.storage.lake import Lake

    about: dict[str, object] = {"replay": replay.name, "target": replay.target, "fills": []}
    lake = Lake.at(setting.lake)
    try:
        found = survey(lake, setting.declarations, replay.name)
    except CapstanError as error:
        # Also for a tape that cannot be read: the other replays are still reported.
        return {**about, **error.summary()}
    about |= {"cut": found.plan.cut.commit, "counts": dict(found.counts)}
    about["stretches"] = [
        {**stretch[0].to_json(), "until": stretch[-1].until, "intervals": len(stretch)}
        for stretch in integer_ranges(found.intervals)
        if stretch[0].state not in (State.COVERED, State.INCOMPLETE)
    ]
    if replay.approve:
        return {**about, "not_filled": "its runs need approval"}
    other = approving_replay(setting, replay.target)
    if other is not None:
        problem = f"replay {other.name} requires approval of every run into its table"
        return {**about, "not_filled": problem}
    fills, problems = _fills(found, chunk)
    return {**about, "fills": fills} | ({"not_filled": "; ".join(problems)} if problems else {})


def _fills(survey: Survey, chunk: int | None) -> tuple[list[dict[str, object]], list[str]]:
    """Requests of the app `backfill` for a replay, and the problems that rule out others.

    The cut is pinned, so that a retry of the app is the next attempt of the same runs.
    """
    from capstan.backfill.planner import BackfillMode, BackfillRequest, plan_replays
    from capstan.errors import InvalidRequestError

    fills: list[dict[str, object]] = []
    problems: list[str] = []
    for mode in (BackfillMode.GAPS, BackfillMode.STALE):
        request: dict[str, object] = {
            "replay": survey.declared.name,
            "what": str(mode),
            "chunk": chunk,
            "as_of": survey.plan.cut.commit,
            "keep_going": True,
        }
        try:
            backfill = BackfillRequest(survey.declared.name, what=mode, chunk=chunk)
            replays = plan_replays(survey, backfill)
        except InvalidRequestError as error:
            problems.append(f"{error.message} ({error.hint})")
        else:
            fills += [request] if replays else []
    return fills, problems


def _form(setting: Settings) -> Mapping[str, Param]:
    return {
        "fill": switch("Fill", "Replay missing intervals, then stale ones.", None),
        "replays": list_field(
            "Replays",
            "Declared replays. Empty: all that have a range or a schedule.",
            None,
            examples=list(setting.declarations.replays),
        ),
        "chunk": number_field(
            "Chunk", "At most this many intervals per run. Empty: one run per gap.", None, 1
        ),
    }
