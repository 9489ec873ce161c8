"""What DAGs and tasks say of themselves in the UI."""

from __future__ import annotations

from collections.abc import Iterable

_CODES = (
    ("0", "done", ""),
    (
        "1",
        "the answer is no: a violation on tape, a failed audit",
        "No retry; the target is as it was. `capstan verify` and `capstan audit` say more.",
    ),
    (
        "2",
        "the request is wrong",
        "No retry; nothing was changed. Mend what the line names, then trigger again.",
    ),
    (
        "3",
        "not complete yet",
        "The task waits and comes back; no try is used up. `plan` fails unless asked to wait.",
    ),
    (
        "4",
        "another run holds that range",
        "No retry. Wait for the run that is named, then clear; if it is dead: `capstan unlock`.",
    ),
    (
        "4, `CAP-CONFLICT`",
        "others were committing to the same table",
        "Retried, as 5 is.",
    ),
    (
        "5, or none",
        "something broke, or the app was killed",
        "Retried, as the next attempt of the same run. Clearing the task does the same.",
    ),
)


def _table(rows: Iterable[tuple[str, str, str]]) -> str:
    lines = ["| exit code | meaning | what happens, and what to do |", "| --- | --- | --- |"]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])


FAILURES = f"""
**When a task fails**, the last line of its log is the error's code, what is wrong, and what to do.

{_table(_CODES)}

Killing, clearing or marking a task ends its Spark app. Whatever were left of it can publish
nothing: the next attempt shuts it out.
"""

CAPTURE = """
Puts on tape what has arrived of stream **{stream}**, then ends. {description}

Each run captures all that is new, so a run that was missed is made up for by the next. The event of
the asset `capstan/streams/{stream}` carries the frontier: every time before it is complete.
"""

REPLAY = """
Plays chosen workers and times of a stream into a table: verified, staged, audited against the tape,
published in one commit. The same replay again changes nothing.

*Trigger* asks for what to play. **plan** refuses what cannot be meant before Spark starts, and
shows what would be read and written; a *dry run* ends there. With *Differences* it also compares
with the table, which takes a Spark app of its own. **replay** is one Spark app.
With *Approve* it stops after its audit, **approve** waits until a person has decided (*Required
Actions*), and **publish** is a second, small app; rejected, the run fails with `CAP-REJECTED` and
the table is as it was. **certificate** shows what was played, what is not covered, and how it was
audited: on the task's page, under *Rendered Templates*.
"""

BACKFILL = """
Replays data intervals of stream **{stream}** into **{target}**. {description}

**complete** waits until the interval is *proven* complete, **plan** shows what will be read and
written, **replay** is one Spark app, **certificate** shows what was done. An interval that stands
is not written again, whatever was captured since: what was complete stays as it was.

Airflow's own backfill runs it over the past (*Trigger, Backfill*; `airflow backfill create`;
REST), several intervals at a time. To do one again, clear its run, or backfill it with *All Runs*.
Declared are intervals from {bounds}; a run outside of that has no tasks.
"""

FOLLOW = """
Plays into **{target}** what became complete of stream **{stream}** since its last run.
{description}

**plan** shows what will be read and written, **replay** is one Spark app, **certificate** shows
what was done. Where nothing became complete, nothing is written. A run that was missed is made up
for by the next, and one that is taken back is played again.

A pipeline goes on from the state of its last run. With *Peers* that is dealt to so many replay
workers, now and for the runs that follow; the certificate says how many keys each of them holds.
"""

ROLLBACK = """
Takes back what a run has published: the rows of before come back in a new version of the table, and
rows that others wrote since stay. The same again changes nothing.

*Trigger* asks for the run, as the page *Capstan* and `capstan runs` name it; the page of a run has
a button for it. A run that has published nothing (`CAP-NOT-PUBLISHED`), or over which a later one
has written (`CAP-LATER`: take that back first), is refused before Spark starts. What it covered is
a gap again.
"""

AUDIT = """
Audits again what replays have published and still stands, each from the version it names: where a
later run has written over part of it, the version that the run had made; elsewhere the table as it
is now.

**plan** lists what stands in every table, and in its log also what is left out where *Newest* asks
for less. **audit** is one Spark app; what it found is on its page, under *Rendered Templates*. A
difference fails the run; nothing is ever changed. A run that cannot be audited any more, since its
code has changed or its version is gone, is named there, and with *Strict* fails the run as well.

With a *Stream* the target is held against that, whoever has put its rows there: a table from before
Capstan, with columns of its own for worker and time.
"""

MAINTAIN = """
Keeps tapes quick and bounded: small files of times that are complete become larger ones, each
worker's records together and in order of time; logs get checkpoints; files that no kept version
has, staged output and snapshots that nobody goes on from are deleted: what was staged and cannot be
published any more once it is as old as *Keep* says.

No row changes, and captures and replays go on meanwhile. The same again changes nothing. What it
did is on the page of **maintain**, under *Rendered Templates*. A batch whose records are not those
that were captured stays as it is, and fails the run with `CAP-TAPE`. A tape that cannot be read
holds up no other: what is wrong with it is told at the end, and fails the run.

What of each recording nobody has verified yet is verified, from the index alone. One that breaks a
rule fails the run with `CAP-VIOLATION`, each time until it is mended, and is on the stream's page.

Where a stream declares `stalled_after`, **watch** looks whether its frontier moves, also while its
captures fail or are paused; one that stands still fails it with `CAP-STALLED`.
"""

TASKS = {
    "capture": "Submits `spark_apps/capture.py`; the XCom is its result.",
    "complete": "Waits for the frontier, and holds no slot of a worker meanwhile.",
    "plan": "Plans and pins the cut, without Spark unless it is asked for differences. The plan is "
    "under *Rendered Templates*.",
    "replay": "Submits `spark_apps/replay.py`; the XCom is the certificate.",
    "approve": "Waits for a person's decision, where one is asked for; holds no slot meanwhile.",
    "publish": "Submits `spark_apps/publish.py`, as was decided; the XCom is the certificate.",
    "certificate": "Shows the certificate, under *Rendered Templates* and in the log.",
    "watch": "Looks whether frontiers move, without Spark.",
    "maintain": "Submits `spark_apps/maintain.py`; the XCom has each table.",
    "rollback": "Submits `spark_apps/rollback.py`; the XCom says which version came of it.",
    "audits": "Lists what stands, without Spark.",
    "audit": "Submits `spark_apps/audit.py`; the XCom has each audit, also when one has failed.",
}
"""What tasks say of themselves, by name; what to do on failures is with the DAG."""
