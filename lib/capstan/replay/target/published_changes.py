"""The runs whose changes are kept beside a target, read from the ledgers and the target's log."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from capstan.core.config.change_rules import ChangeRule
from capstan.errors import InvalidRequestError, RangeLockedError
from capstan.errors.shell_command import command
from capstan.replay.planning.intent import Intent
from capstan.replay.planning.kept_changes import KeptChanges, in_effect, partly_replaced
from capstan.replay.planning.plan import Plan
from capstan.replay.target import target_table
from capstan.replay.target.ownership import Ownership
from capstan.storage.delta import delta
from capstan.storage.delta.opened_table import OpenedTable
from capstan.storage.lake import is_table
from capstan.storage.ledger.coverage import Covered
from capstan.storage.ledger.runs import History, Step
from capstan.storage.ledger.tables import kept_changes_path


def changes_of_plan(plan: Plan, name: str, run: str) -> KeptChanges:
    """The changes that a replay makes, under the name of its attempt."""
    code = (plan.computation.code, *_rule(plan).flags)
    return KeptChanges(name, run, replace(plan.scope, region=plan.region), code)


def published_changes(owner: Ownership, besides: Collection[str] = ()) -> tuple[KeptChanges, ...]:
    """The changes of the runs in effect in a target, in order of publication."""
    # A publish or rollback counts from its commit in the target on, before any ledger has it.

    # Read before the coverage: what another process records in between is then refused, not missed.
    plan, histories = owner.plan, owner.histories
    # Opened after the histories were read: it has all that a run among them had committed by then.
    table = delta.open_if_table(plan.target)
    for run, history in histories.items():
        if run not in besides and history.done is None and _has_unrecorded(table, history):
            raise _unrecorded(plan, run)
    published = []
    for entry in owner.covered:
        if entry.run in besides:
            continue
        recorded = histories.get(entry.run)
        if recorded is None or recorded.done is None:
            raise _unrecorded(plan, entry.run)
        if _stands(table, recorded):
            published.append(_kept(plan, entry, recorded))
    return tuple(published)


def is_in_effect(owner: Ownership, run: str) -> bool:
    """Whether the changes of a run count, or others of the same code in their place."""
    published = published_changes(owner)
    own = next((changes for changes in published if changes.run == run), None)
    if own is None:
        return False
    later = published[published.index(own) + 1 :]
    return not any(each.code != own.code and each.contains(own) for each in later)


def require_one_rule(owner: Ownership, besides: Collection[str] = ()) -> None:
    """Check that all rows of a target come from runs that merge as a replay does."""
    plan = owner.plan
    if plan.change_rule is None:
        _require_plain(owner)
        return
    counting = in_effect(published_changes(owner, besides))
    other = partly_replaced(changes_of_plan(plan, "", ""), counting)
    if other is not None:
        raise InvalidRequestError(
            "CAP-SEQUENCE",
            f"run {other.run} has merged changes of a part of this range into "
            f"{plan.request.into} by other code, and would be replaced only in part",
            f"replay a range that contains all of its range; or first `capstan rollback "
            f"{other.run}`",
            run=other.run,
        )


def _require_plain(owner: Ownership) -> None:
    """Check that no run in a target merges by sequence; others would change rows unseen by it."""
    plan = owner.plan
    if not is_table(kept_changes_path(plan.lake, plan.target)):
        return
    for entry in owner.covered:
        history = owner.histories.get(entry.run)
        if history is not None and _rule_of(history) is not None:
            raise InvalidRequestError(
                "CAP-SEQUENCE",
                f"run {entry.run} has merged into {plan.request.into} by sequence, and this replay "
                "would write there without one",
                "replay into another table; or first roll back the runs that merge by sequence",
                run=entry.run,
            )


def _kept(plan: Plan, entry: Covered, history: History) -> KeptChanges:
    rule = _rule_of(history)
    if rule is None or rule.shape != _rule(plan).shape or entry.output != plan.output:
        raise InvalidRequestError(
            "CAP-SEQUENCE",
            f"run {entry.run} has written rows of another output to {plan.request.into}, or with "
            "other keys, sequence_by, unchanged or history",
            f"replay into another table; or first {command('rollback', entry.run)}",
            run=entry.run,
        )
    region, certificate = history.region, history.certificate
    assert region is not None and certificate is not None
    name, code = f"{entry.run}-{certificate.attempt}", (entry.code, *rule.flags)
    return KeptChanges(name, entry.run, replace(entry.scope, region=region), code)


def _rule(plan: Plan) -> ChangeRule:
    assert plan.change_rule is not None
    return plan.change_rule


def _rule_of(history: History) -> ChangeRule | None:
    """The rule by which a run has merged; None when it did not merge by sequence."""
    row = history.effective_intent
    if row is None:
        return None
    intent = Intent.from_json(row.detail)
    return ChangeRule.of(intent.keys, intent.request)


def _stands(table: OpenedTable | None, history: History) -> bool:
    """Whether the target still has the publish of a run, which was not rolled back since."""
    assert history.done is not None
    run, done = history.run_id, history.done
    newest = target_table.txn_version(table, run)
    last = max(row.attempt for row in history.rows if row.step is Step.DONE)
    if 0 <= newest <= run.change(last).version:
        return True
    return newest >= 0 and (
        target_table.find_rollback(history.last.target, run.name, done.target_version) is None
    )


def _has_unrecorded(table: OpenedTable | None, history: History) -> bool:
    """Whether a run that no ledger has as published is in the target's log."""
    if history.rolled_back or not target_table.may_have_landed(table, history):
        return False
    publish = target_table.find_landed(history)
    return publish is not None and (
        target_table.find_rollback(history.last.target, history.last.run, publish[0].version)
        is None
    )


def _unrecorded(plan: Plan, run: str) -> RangeLockedError:
    return RangeLockedError(
        "CAP-CONFLICT",
        f"run {run} has published into {plan.request.into}, and no ledger has it yet",
        "unless that run is still at work, its command or any replay into the table completes it",
        run=run,
    )
