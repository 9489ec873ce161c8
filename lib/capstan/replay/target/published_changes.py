"""The changes that runs keep beside a table that merges by sequence, and which of them count.

The rows of such a table are a function of the set of changes in effect, and of nothing else. So
neither the order of the replays nor how they were cut matters, and a rollback leaves a run out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from capstan.core.config.change_rules import ChangeRule
from capstan.errors import InvalidRequestError, RangeLockedError
from capstan.errors.shell_command import command
from capstan.replay.planning.intent import Intent
from capstan.replay.planning.plan import Plan
from capstan.replay.target import target_table
from capstan.replay.target.ownership import Ownership
from capstan.storage.delta import delta
from capstan.storage.delta.opened_table import OpenedTable
from capstan.storage.lake import is_table
from capstan.storage.ledger.claims import Scope
from capstan.storage.ledger.coverage import Covered
from capstan.storage.ledger.runs import History
from capstan.storage.ledger.tables import kept_changes_path


@dataclass(frozen=True, slots=True)
class KeptChanges:
    """The changes of one published run."""

    name: str
    run: str
    scope: Scope  # The workers and times that it replayed; None for all workers.
    code: tuple[str | None, ...]  # The code of its computation, and `ChangeRule.flags`.

    def contains(self, other: KeptChanges) -> bool:
        """Whether this run replayed all workers and times of another one."""
        return self.scope.contains(other.scope)

    def meets(self, other: KeptChanges) -> bool:
        """Whether both runs may have replayed the same records."""
        return self.scope.overlaps(other.scope)


def in_effect(published: Sequence[KeptChanges]) -> tuple[KeptChanges, ...]:
    """The changes, in order of publication, whose range no later run has replayed as a whole."""
    counting: list[KeptChanges] = []
    for changes in published:
        counting = [earlier for earlier in counting if not changes.contains(earlier)]
        counting.append(changes)
    return tuple(counting)


def partly_replaced(changes: KeptChanges, counting: Iterable[KeptChanges]) -> KeptChanges | None:
    """Changes of other code that a new run would replace only in part; None when there are none."""
    # Of equal sequences, neither the old nor the new code's change could be told to be the later
    # one.
    others = (other for other in counting if other.code != changes.code)
    return next((o for o in others if o.meets(changes) and not changes.contains(o)), None)


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
        is_there = target_table.txn_version(table, recorded.run_id) >= 0
        if is_there and not target_table.was_undone(table, recorded):
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


def _has_unrecorded(table: OpenedTable | None, history: History) -> bool:
    """Whether a run that no ledger has as published is in the target's log."""
    if history.rolled_back or not target_table.may_have_landed(table, history):
        return False
    publish = target_table.find_landed(history)
    return publish is not None and (
        target_table.find_rollback(history.last.target, history.last.run, publish.version) is None
    )


def _unrecorded(plan: Plan, run: str) -> RangeLockedError:
    return RangeLockedError(
        "CAP-CONFLICT",
        f"run {run} has published into {plan.request.into}, and no ledger has it yet",
        "unless that run is still at work, its command or any replay into the table completes it",
        run=run,
    )
