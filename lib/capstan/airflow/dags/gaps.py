"""The DAG `capstan_gaps`: which intervals of the declared replays are missing or stale; fills them.

It reports once a day, and fills only where its parameter `fill` says so: then in one Spark app.
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
from capstan.airflow.operators.failures import as_task, say_last
from capstan.airflow.operators.submit import CapstanSubmitOperator
from capstan.airflow.settings import Settings
from capstan.core.config import Replay
from capstan.reporting.formatting import workers_text

if TYPE_CHECKING:
    from capstan.backfill.survey import Survey

DAG_ID = "capstan_gaps"
_SHOWN = 100

ABOUT = """
Tells of each declared replay which intervals of its range are covered, stale, missing, changed by
others or not complete yet: of those that have a range or a schedule, or of the replays that are
chosen.

**gaps** needs no Spark; what it found is on its page, under *Rendered Templates*, and in its XCom.
With *Fill*, **fill** is one Spark app that replays first what is missing, then what is stale, each
as a run of its own. A replay into a table where somebody has to approve runs is reported, and not
filled: play its intervals by `capstan_replay`.
"""


class ListGapsOperator(BaseOperator):
    """Tells what declared replays lack, from the index and the ledgers alone, without a JVM.

    It leaves XComs: `replays`, an entry each with the number of intervals by state and with those
    that are not covered; and `request`, for the app `backfill`. What follows is skipped when there
    is nothing to fill, or when nobody has asked for it.
    """

    template_fields = ("found",)
    template_fields_renderers = {"found": "md"}  # noqa: RUF012
    overwrite_rtif_after_execution = True
    ui_color = "#f3ecd2"

    def __init__(self, *, setting: Settings, **rest: object) -> None:
        """Prepare a task that looks for gaps, as the run's parameters choose replays."""
        rest.setdefault("on_failure_callback", say_last)
        rest.setdefault("multiple_outputs", True)
        super().__init__(**rest)  # type: ignore[arg-type]
        self.found = ""
        self._setting = setting

    def execute(self, context: Context) -> dict[str, object]:
        """Look for gaps; what was found, and what to fill."""
        params = context["params"]
        with as_task():
            chosen = _chosen(self._setting, params.get("replays"))
            told = [_told(self._setting, replay, params.get("chunk")) for replay in chosen]
        asked = [fill for entry in told for fill in entry.pop("fills")]  # type: ignore[attr-defined]
        self.found = gaps_markdown(told)
        for line in self.found.splitlines():
            self.log.info("%s", line)
        result = {"replays": told, "request": {"backfills": asked}, "count": len(asked)}
        if not asked or not params.get("fill"):
            self.log.info("nothing is filled: %s", "fill is off" if asked else "nothing is missing")
            context["ti"].xcom_push(key="return_value", value=result)
            following = context["task"].get_flat_relative_ids(upstream=False)
            raise DownstreamTasksSkipped(tasks=sorted(following))  # type: ignore[no-untyped-call]
        return result


class FillOperator(CapstanSubmitOperator):
    """Submits backfills; each run that has published is an event of its target's asset."""

    def tell_assets(self, context: Context, result: Mapping[str, object]) -> None:
        """Tell the targets' assets what was played into them."""
        for run in _runs(result):
            if run.get("published") and not run.get("stood"):
                tell_tables(context, self.outlets, run.get("target"), certified(run))


def gaps_dags(setting: Settings) -> Iterator[DAG]:
    """The DAG that looks for gaps, daily and by hand; none where no replay is declared."""
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
            doc_md="Looks for gaps, without Spark. What it found is under *Rendered Templates*.",
            **task_defaults(setting, over_all=True),
        )
        fill = FillOperator(
            task_id="fill",
            app="backfill",
            setting=setting,
            request=XComArg(gaps, "request"),
            show=backfills_markdown,
            outlets=[REPLAYED],
            doc_md="Submits `spark_apps/backfill.py`; the XCom has each run.",
            **task_defaults(setting, over_all=True),
        )
        gaps >> fill
    yield dag


def gaps_markdown(told: Iterable[Mapping[str, object]]) -> str:
    """What replays lack, as markdown: their counts, then the intervals that are not covered."""
    lines = ["## Coverage of declared replays", "", "| replay | target | intervals |"]
    lines.append("| --- | --- | --- |")
    parts: list[str] = []
    for each in told:
        counts = each.get("counts")
        said = str(each.get("message", ""))
        if isinstance(counts, Mapping):
            said = ", ".join(f"{n} {state}" for state, n in counts.items() if n) or "none"
        lines.append(_row(each.get("replay"), each.get("target"), said))
        parts += _lacking(each)
    return "\n".join(lines + parts)


def backfills_markdown(result: Mapping[str, object]) -> str:
    """What the app `backfill` has done, as markdown."""
    lines = ["## Backfills", "", "| since | until | workers | records | version | run | |"]
    lines.append("| --- | --- | --- | --- | --- | --- | --- |")
    for run in _runs(result):
        became = "waits for approval" if run.get("published") is False else "published"
        if run.get("stood"):
            became = "stood already"
        if "error" in run:
            became = f"{run['error']}: {run.get('message')}"
        elif run.get("run") is None:
            became = "not begun"
        workers = workers_text(run.get("workers"))
        shown = ", ".join(map(str, workers)) if isinstance(workers, list) else workers or "all"
        cells = (run.get(key) for key in ("records", "target_version", "run"))
        lines.append(_row(run.get("since"), run.get("until"), shown, *cells, became))
    return "\n".join(lines)


def _runs(result: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    backfills = result.get("backfills")
    for each in backfills if isinstance(backfills, list) else [result]:
        runs = each.get("runs")
        yield from runs if isinstance(runs, list) else ()


def _lacking(entry: Mapping[str, object]) -> list[str]:
    """A table of the stretches of a replay that are not covered, and what speaks against a fill."""
    stretches = entry.get("stretches")
    lines = []
    if isinstance(stretches, list) and stretches:
        lines = ["", f"### {entry.get('replay')}", "", "| since | until | state | workers |"]
        lines.append("| --- | --- | --- | --- |")
        for each in stretches[:_SHOWN]:
            missing = ", ".join(each["missing"])
            lines.append(_row(each["since"], each["until"], each["state"], missing))
        if len(stretches) > _SHOWN:
            lines += ["", f"and {len(stretches) - _SHOWN} more"]
    problem = entry.get("not_filled")
    return [*lines, "", f"Is not filled: {problem}"] if problem else lines


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(markdown_cell, cells))} |"


def _chosen(setting: Settings, names: list[str] | None) -> list[Replay]:
    """The replays to look at.

    Raises:
        InvalidRequestError: `CAP-REPLAY` for one that is not declared.
    """
    declared = setting.declarations
    if names:
        return [declared.replay(name) for name in names]
    return [
        replay
        for replay in declared.replays.values()
        # What follows plays each time once it is complete: it has no intervals to be missing.
        if replay.follow is None
        and (replay.since is not None or replay.until is not None or replay.schedule is not None)
    ]


def _told(setting: Settings, replay: Replay, chunk: int | None) -> dict[str, object]:
    """What there is to say of a replay: its counts, its gaps, and under `fills` what to ask for."""
    from capstan.airflow.lake_queries import approving
    from capstan.backfill.interval import stretches
    from capstan.backfill.survey import State, survey
    from capstan.errors import CapstanError
    from capstan.storage.lake import Lake

    about: dict[str, object] = {"replay": replay.name, "target": replay.target, "fills": []}
    lake = Lake.at(setting.lake)
    try:
        found = survey(lake, setting.declarations, replay.name)
    except CapstanError as error:
        # Also a tape that cannot be read: it hides nothing of the others.
        return {**about, **error.summary()}
    about |= {"cut": found.plan.cut.commit, "counts": dict(found.counts)}
    about["stretches"] = [
        {**stretch[0].to_json(), "until": stretch[-1].until, "intervals": len(stretch)}
        for stretch in stretches(found.intervals)
        if stretch[0].state not in (State.COVERED, State.INCOMPLETE)
    ]
    if replay.approve:
        return {**about, "not_filled": "a person has to approve its runs"}
    other = approving(setting, replay.target)
    if other is not None:
        said = f"a person has to approve each run into its table, by replay {other.name}"
        return {**about, "not_filled": said}
    fills, problems = _fills(found, chunk)
    return {**about, "fills": fills} | ({"not_filled": "; ".join(problems)} if problems else {})


def _fills(found: Survey, chunk: int | None) -> tuple[list[dict[str, object]], list[str]]:
    """The backfills that a replay needs, as requests of the app; and what speaks against others.

    The cut is pinned, so that a retry of the app is the next attempt of the same runs.
    """
    from capstan.backfill.planner import Backfill, BackfillMode, propose
    from capstan.errors import InvalidRequestError

    fills: list[dict[str, object]] = []
    problems: list[str] = []
    for what in (BackfillMode.GAPS, BackfillMode.STALE):
        asked: dict[str, object] = {
            "replay": found.declared.name,
            "what": str(what),
            "chunk": chunk,
            "as_of": found.plan.cut.commit,
            "keep_going": True,
        }
        try:
            proposed = propose(found, Backfill(found.declared.name, what=what, chunk=chunk))
        except InvalidRequestError as error:
            problems.append(f"{error.message} ({error.hint})")
        else:
            fills += [asked] if proposed else []
    return fills, problems


def _form(setting: Settings) -> Mapping[str, Param]:
    return {
        "fill": switch("Fill", "Also replay what is missing, then what is stale.", None),
        "replays": list_field(
            "Replays",
            "Declared replays; empty for all that have a range or a schedule.",
            None,
            examples=list(setting.declarations.replays),
        ),
        "chunk": number_field(
            "Chunk", "Intervals a run has at most; empty for one run over each stretch.", None, 1
        ),
    }
