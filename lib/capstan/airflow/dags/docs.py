"""Documentation of DAGs and tasks, shown in Airflow's UI."""

from __future__ import annotations

from collections.abc import Iterable

_CODES = (
    ("0", "done", ""),
    (
        "1",
        "a check failed: a violation on tape, a failed audit",
        "No retry; the target is unchanged. See `capstan verify` and `capstan audit` for details.",
    ),
    (
        "2",
        "the request is wrong",
        "No retry; nothing was changed. Fix what the log's last lines name, then trigger again.",
    ),
    (
        "3",
        "not complete yet, or paused",
        "The task waits without using up a try. `plan` fails unless *Wait* is on.",
    ),
    (
        "4",
        "another run holds that range",
        "No retry. Wait for the named run, then clear the task; `capstan unlock` if it is dead.",
    ),
    ("4, `CAP-CONFLICT`", "others were committing to the same table", "Retried, like exit code 5."),
    (
        "5, `CAP-DAMAGED`, `CAP-JAVA`, `CAP-PACKAGE`",
        "no retry would mend it",
        "No retry. Do what the log's last lines say, then clear the task.",
    ),
    (
        "5, or none",
        "something broke, or the job was killed",
        "Retried as the next attempt of the same run. Clearing the task has the same effect.",
    ),
)


def _table(rows: Iterable[tuple[str, str, str]]) -> str:
    lines = ["| exit code | meaning | what happens, and what to do |", "| --- | --- | --- |"]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])


FAILURES = f"""
**When a task fails**, the last lines of its log show the error code, what is wrong and what to do.

{_table(_CODES)}

Killing, clearing or marking a task ends its Spark job. If a process survives, it cannot publish:
the next attempt fences it.
"""

CAPTURE = """
Appends to the tape what has arrived of stream **{stream}**, then ends. {description}

Each run captures everything new, so the next run makes up for a missed one. The event of the asset
`capstan/streams/{stream}` carries the frontier: all times before it are complete. If the stream
declares `partitions`, there is an event for each interval that the frontier has passed instead;
**partitions** emits those that are too many for one task.
"""

REPLAY = """
Replays chosen workers and times of a stream into a table: verified, staged, audited against the
tape, published in one commit. Repeating a replay changes nothing.

*Trigger* opens the form. **plan** rejects invalid requests before Spark starts, and shows what
would be read and written; a *dry run* ends there. With *Differences*, the plan also compares with
the table, in a Spark job of its own. **replay** is one Spark job. With *Approve*, it stops after
its audit, **approve** waits for a person's decision (*Required Actions*), and **publish** is a
second, small job. A rejected run fails with `CAP-REJECTED`, without Spark, and leaves the table
unchanged. **certificate** shows what was replayed, what is not covered, and the result of the
audit: on the task's page, under *Rendered Templates*.
"""

BACKFILL = """
Replays data intervals of stream **{stream}** into **{target}**. {description}

**complete** waits until the interval is *proven* complete, **plan** shows what will be read and
written, **replay** is one Spark job, **certificate** shows what was done. A published interval is
not written again, whatever was captured since: complete times do not change.

Airflow's own backfill runs this DAG over the past (*Trigger, Backfill*; `airflow backfill create`;
REST), several intervals at a time. To redo an interval, clear its run, or backfill it with *All
Runs*. The declared bounds are {bounds}; a run outside them has no tasks.
"""

FOLLOW = """
Replays into **{target}** what became complete of stream **{stream}** since the last run.
{description}

**plan** shows what will be read and written, **replay** is one Spark job, **certificate** shows
what was done. If nothing became complete, nothing is written. The next run makes up for a missed
one, and replays again what was rolled back.

A pipeline continues from the state of its last run. *Peers* distributes the state over that many
replay workers, for this run and later ones; the certificate shows how many keys each one holds.
"""

PARTITIONS = """
Tells which intervals **{target}** covers, as partition keys of the table's asset. What it has lost
since is told as keys of the asset `.../gone` beside it. It runs daily, and after each event of the
table without a key: a publish, a rollback.

**count** compares what the table covers with what was told before, without Spark; **partitions**
tells the difference, 500 intervals at a time. What was never covered is for `capstan_gaps`.
"""

_ROLLBACK = """
Rolls back what a run published: the previous rows come back in a new version of the table, and
rows that others wrote since stay. Repeating a rollback changes nothing.

*Trigger* asks for the run's name, as shown on the page *Capstan* and by `capstan runs`; the page of
a run has a button for it. **plan** refuses two cases before Spark starts: the run has published
nothing (`CAP-NOT-PUBLISHED`), or a later run overwrote part of it (`CAP-LATER`: roll that one back
first). For a run that is rolled back already, it says so, and Spark does not start.
What the run covered becomes a gap again.
"""

_VERIFY = """
Checks the recordings of a stream against the rules of the protocol, where the last check stopped.

With *Deep*, all records are also compared with the counts and hashes of their events. A recording
that breaks a rule fails the run with `CAP-VIOLATION`; nothing is ever changed.
"""

_PUT_BACK = """
Puts the late records of a stream back on its tape, at the frontier, once each. They are complete
when the frontier passes them. Repeating it changes nothing.

The stream's page lists late records by reason; only those that were *late* come back.

With *Because*, records that shall not return are dropped instead: those with the given reason,
cause and file, or all. Nothing is deleted, and *Undrop* with the number of the batch undoes it.

With *Fix* and *Reason*, records are repaired by SQL over the columns of the table `late`, such as
`CAST(split(raw, ';')[2] AS INT) AS delay`, and return; those that are still wrong stay. *Dry run*
only says which. The XCom has the counts.
"""

_UNLOCK = """
Declares a run dead, and releases its claim, so that others can have its range. Needs no Spark.

A process that still lives cannot publish any more: its claim is gone. To finish the run instead,
clear its task, or repeat the replay.
"""

_PAUSE = """
Pauses the backfills of a declared replay: the runs at work go on to their end, and no other begins,
until this DAG runs with *Resume*. Needs no Spark.

Tasks of `capstan_gaps` and of the replay's own DAG wait meanwhile, without using up a try, and then
go on with what is missing. On the command line, `capstan backfill` does the same with `--pause` and
`--resume`, and ends with exit code 3 while they are paused.
"""

REPAIRS = {
    "rollback": ("Roll back what a run published", _ROLLBACK),
    "verify": ("Check the recordings of a stream against the rules", _VERIFY),
    "put_back": ("Put late records of a stream back on its tape", _PUT_BACK),
    "unlock": ("Release the claim of a dead run", _UNLOCK),
    "pause": ("Pause the backfills of a replay, or let them go on", _PAUSE),
}
"""The description and the text of each DAG that only a person starts, but for replays."""

GAPS = """
Reports which intervals of each declared replay are covered, stale, missing, changed by others or
not complete yet. It covers the chosen replays, or all that have a range or a schedule.

**gaps** needs no Spark; its report is on its page, under *Rendered Templates*, and in its XCom.
With *Fill*, **fill** is one Spark job that replays missing intervals, then stale ones, each as a
run of its own. Replays into a table whose runs need approval are reported but not filled: replay
their intervals by hand.
"""

ATTENTION = """
Looks every quarter of an hour for what needs a person, without Spark: runs that wait for approval,
failed and dead runs, stalled frontiers, violations, and intervals of declared replays that are
missing, stale or changed by others. It is the list on the page *Capstan*, and of `capstan status`.

What was not there at the last look is told once: to the notifiers of the streams and replays that
it concerns (`notify`), and to those in `CAPSTAN_NOTIFY`. The context's `exception` is the error
`CAP-ATTENTION`, which lists it. The task itself does not fail for it.
"""

AUDIT = """
Audits again everything that replays have published. If a later run overwrote part of a run's rows,
the version that the run wrote is audited; otherwise the table as it is now.

**plan** lists the published runs of every table; its log also names the runs that *Newest* leaves
out. **audit** is one Spark job; its findings are on its page, under *Rendered Templates*. A
difference fails the run; nothing is ever changed. Runs that can no longer be audited, because their
code changed or their version is gone, are listed there; with *Strict*, they fail the run as well.

With a *Stream*, the target is compared with that stream, whatever wrote its rows: for example a
table that is older than Capstan, with its own columns for worker and time.
"""

MAINTAIN = """
Keeps tapes fast and bounded. Small files of complete times are merged, with each worker's records
together and ordered by time. Delta logs get checkpoints. Files that no kept version uses and
snapshots that no run will continue from are deleted, and so is staged output that can no longer be
published, once it is older than *Keep*.

No row changes, and captures and replays continue meanwhile. Repeating it changes nothing. The
results are on the page of **maintain**, under *Rendered Templates*. A batch whose records differ
from those captured is left alone, and fails the run with `CAP-TAPE`. A tape that cannot be read
does not hold up the others: its error is reported at the end, and fails the run.

The part of each recording that is not verified yet is verified, from the index alone. A recording
that breaks a rule fails the run with `CAP-VIOLATION`, every time until it is repaired, and is shown
on the stream's page.

If a stream declares `stalled_after`, **watch** checks that its frontier moves, even while its
captures fail or are paused; a frontier that does not move fails it with `CAP-STALLED`.
"""

TASKS = {
    "capture": "Submits the job `capture`; the XCom is its result.",
    "count": "Counts the batches of partitions that are still to be told.",
    "partitions": "Tells a batch of partitions: intervals that the frontier has passed, or that "
    "the table covers or has lost.",
    "complete": "Waits for the frontier, without holding a worker slot.",
    "plan": "Plans the replay and pins the cut, without Spark unless *Differences* is on. The plan "
    "is under *Rendered Templates*.",
    "replay": "Submits the job `replay`; the XCom is the certificate.",
    "approve": "Waits for a person's decision, if one is required, without holding a worker slot.",
    "publish": "Submits the job `publish` with the decision; the XCom is the certificate.",
    "certificate": "Shows the certificate, under *Rendered Templates* and in the log.",
    "watch": "Checks that frontiers move, without Spark.",
    "maintain": "Submits the job `maintain`; the XCom lists each table.",
    "reversible": "Refuses what cannot be rolled back, without Spark. If the run already is, the "
    "result is under *Rendered Templates*, and nothing more is done.",
    "rollback": "Submits the job `rollback`; the XCom has the new version of the table.",
    "verify": "Submits the job `verify`; the XCom has each worker.",
    "put_back": "Submits the job `put_back`; the XCom has the number of records.",
    "unlock": "Releases the claim, without Spark.",
    "pause": "Pauses backfills or lets them go on, without Spark; the XCom says which.",
    "look": "Lists what needs a person, and tells notifiers what is new; the XCom is the list.",
    "gaps": "Looks for gaps, without Spark. The report is under *Rendered Templates*.",
    "fill": "Submits the job `backfill`; the XCom lists each run.",
    "audits": "Lists published runs, without Spark.",
    "audit": "Submits the job `audit`; the XCom lists each audit, failed ones included.",
}
"""Documentation of tasks, by name; the DAG's text says what to do on failures."""
