"""The list of what needs a person, from the views of streams, declared replays and runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from capstan.core.config import ProjectConfig
from capstan.core.json_object import Json
from capstan.errors import SystemFailureError
from capstan.errors.shell_command import shell_line
from capstan.reporting.attention.items import KINDS, AttentionItem, AttentionList
from capstan.reporting.attention.repeating import replay_command
from capstan.reporting.attention.stalls import find_stall
from capstan.reporting.attention.unfinished import find_unfinished
from capstan.reporting.coverage_view import Coverage, Informed, NoCoverage, view_coverages
from capstan.reporting.formatting import bounds_text, brief_text, number, time_text
from capstan.reporting.run_heads import RunHeads, read_heads
from capstan.reporting.run_view import RunView
from capstan.reporting.stream_view import NoView, StreamHistory, stream_names, view_streams
from capstan.storage.lake import Lake
from capstan.storage.ledger.tables import now

FEW = 20
"""The entries of each kind that are listed for people; the others are counted."""

_WORDS = {
    "gap": "{} not written",
    "changed": "{} changed by others",
    "stale": "{} written by older code",
}


def read_attention(
    lake: Lake, config: ProjectConfig, most: int = FEW, informed: Informed = list
) -> AttentionList:
    """What needs a person in a lake, with at most so many entries of each kind."""
    lake.require()
    bounded = [replay.name for replay in config.replays.values() if replay.has_intervals]
    return list_attention(
        lake,
        config,
        view_streams(lake, config, stream_names(lake, config)),
        view_coverages(lake, config, bounded, informed=informed),
        read_heads(lake),
        most,
        informed,
    )


def list_attention(
    lake: Lake,
    config: ProjectConfig,
    streams: Sequence[StreamHistory | NoView],
    replays: Sequence[Coverage | NoCoverage],
    runs: RunHeads,
    most: int = FEW,
    informed: Informed = list,
) -> AttentionList:
    """What needs a person of these streams, replays and runs.

    Streams and replays are bounded by what is declared. Of runs, which grow, no more than are
    listed are read in detail.
    """
    moment = now()
    items: list[AttentionItem] = []
    counts: Counter[tuple[str, str]] = Counter()
    for item in (*_of_streams(lake, config, streams, moment), *_of_replays(replays, streams)):
        items.append(item)
        counts[item.kind, item.stream] += 1
    unfinished = find_unfinished(runs, moment, informed)
    for kind in ("waiting", "failed", "dead"):
        heads: RunHeads = getattr(unfinished, kind)
        items += [_of_run(kind, view, config) for view in heads.views(0, most)]
        counts.update({(kind, stream): count for stream, count in heads.by_stream.items()})
    for stream, state, count, _ in unfinished.older.counts:
        counts["failed" if state == "failed" else "dead", stream] += count
    order = list(KINDS)
    items.sort(key=lambda item: order.index(item.kind))
    return AttentionList(tuple(items), counts, len(unfinished.older)).first(most)


def _of_streams(
    lake: Lake, config: ProjectConfig, views: Iterable[StreamHistory | NoView], moment: datetime
) -> Iterator[AttentionItem]:
    for view in views:
        if isinstance(view, NoView):
            if view.error is not None:
                yield AttentionItem(
                    kind="unreadable", subject="stream", name=view.name, stream=view.name,
                    text=_problem(view.error.summary()),
                )  # fmt: skip
            continue
        found = view.violations
        if found:
            first, more = found[0], len(found) - 1
            yield AttentionItem(
                kind="violation", subject="stream", name=view.name, stream=view.name,
                text=f"worker {view.label(first.worker)} breaks {first.rule}"
                + (f", and {number(more)} more do" if more else ""),
                since=min(each.at for each in found), number=len(found),
                command=shell_line("capstan", "verify", view.name),
            )  # fmt: skip
        stall = find_stall(lake, config, view, moment)
        if stall is not None:
            yield AttentionItem(
                kind="stalled", subject="stream", name=view.name, stream=view.name,
                text=stall.text, since=stall.since,
                command=shell_line("capstan", "show", view.name),
            )  # fmt: skip


def _of_replays(
    views: Iterable[Coverage | NoCoverage], streams: Iterable[StreamHistory | NoView]
) -> Iterator[AttentionItem]:
    unreadable = {view.name for view in streams if isinstance(view, NoView)}
    for view in views:
        if not view.declared.has_intervals:
            continue
        if isinstance(view, Coverage):
            yield from _of_coverage(view)
        elif isinstance(view.error, SystemFailureError) and unreadable.isdisjoint(
            view.declared.inputs
        ):
            yield AttentionItem(
                kind="unreadable", subject="replay", name=view.declared.name,
                stream=view.declared.stream, replay=view.declared.name,
                target=view.declared.target, text=_problem(view.error.summary()),
            )  # fmt: skip


def _of_coverage(view: Coverage) -> Iterator[AttentionItem]:
    """The intervals that a replay lacks; those whose last run failed or is dead are among them."""
    declared, counts = view.declared, view.counts
    for kind, states in (
        ("gap", ("gap", "failed", "dead")),
        ("changed", ("changed",)),
        ("stale", ("stale",)),
    ):
        count = sum(counts.get(state, 0) for state in states)
        if not count:
            continue
        parts = [part for part in view.stretches if part.state in states]
        first = parts[0].since if parts else None
        text = _WORDS[kind].format(f"{number(count)} interval{'' if count == 1 else 's'}")
        failed = counts["failed"] if kind == "gap" else 0
        mended = [part for part in parts if part.fillable]
        words = ("backfill", declared.name, *(("--stale",) if kind == "stale" else ()))
        yield AttentionItem(
            kind=kind, subject="replay", name=declared.name, stream=declared.stream,
            replay=declared.name, target=declared.target, first=first, number=count,
            text=text
            + (f" from {time_text(first)}" if first else "")
            + (f"; the last run of {number(failed)} failed" if failed else ""),
            command=shell_line("capstan", *words) if mended else "",
            # Of several stretches, the calendar lets a person choose.
            form=view.fill_query(mended[0]) if len(mended) == len(parts) == 1 else "",
        )  # fmt: skip


def _of_run(kind: str, view: RunView, config: ProjectConfig) -> AttentionItem:
    replay = view.owner[1] or ""
    declared = config.replays.get(replay)
    if kind == "waiting" or view.state == "approved":
        command = shell_line("capstan", "publish", view.run)
    elif declared is not None and declared.has_intervals:
        command = shell_line("capstan", "backfill", replay)
    else:
        command = replay_command(view.request)
    return AttentionItem(
        kind=kind, subject="run", name=view.run, stream=view.stream, replay=replay,
        target=view.target, since=view.at, text=_run_text(kind, view), command=command,
    )  # fmt: skip


def _run_text(kind: str, view: RunView) -> str:
    about, into = view.certificate, view.target.rpartition("/")[2]
    times = "" if about is None else " " + bounds_text(about.since, about.until)
    if kind == "waiting":
        records = (
            "its records"
            if about is None or not about.records
            else f"{number(about.records)} records"
        )
        return f"{records}{times} wait to be published into {into}"
    if kind == "failed":
        return _problem(view.error)
    if view.state == "approved":
        return f"approved, but cut off before it published into {into}"
    return f"cut off before it published{times} into {into}"


def _problem(error: Json) -> str:
    return f"{error.get('error')}: {brief_text(error.get('message'))}"
