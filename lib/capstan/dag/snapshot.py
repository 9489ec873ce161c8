"""Takes the checkpoint of running nodes, and puts one back: all of it or nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from capstan.dag.changelog import Change, Changelog
from capstan.dag.checkpoint import DagCheckpoint, NodeCheckpoint
from capstan.dag.errors import RestoreFailed
from capstan.dag.event import WEIGHT, Event, OutputKey, OutputKind
from capstan.dag.graph import operator_id
from capstan.dag.node import NodeContext
from capstan.dag.operator import Operator, OperatorState


def snapshot_of(
    nodes: Iterable[NodeContext], changelog: Changelog, checkpoint_id: int | None
) -> DagCheckpoint:
    """What these nodes know, in their order.

    Raises:
        OperatorFailed: An operator cannot give its state.
    """
    taken: dict[str, NodeCheckpoint] = {}
    outputs: dict[OutputKey, tuple[Event, ...]] = {}
    for node in nodes:
        taken[node.node] = NodeCheckpoint(
            _state_of(node), node.watermark, node.timers, tuple(node.queue)
        )
        outputs |= {key: tuple(events) for key, events in node.collected().items()}
        changes = changelog.peek(node.node)
        if changes:
            key = OutputKey(node.node, OutputKind.CHANGE)
            outputs[key] = tuple(change.weighted() for change in changes)
    return DagCheckpoint(taken, outputs, checkpoint_id)


def restore_into(
    nodes: Sequence[NodeContext],
    changelog: Changelog,
    checkpoint: DagCheckpoint,
    *,
    allow_missing: bool,
) -> None:
    """Put a checkpoint back into these nodes.

    Raises:
        RestoreFailed: Naming the node and the reason; nothing was changed.
        OperatorFailed: And an operator could not even take its own state back.
    """
    if not allow_missing:
        _check_names(nodes, checkpoint)
    _restore_operators(nodes, checkpoint)
    for node in nodes:
        known = checkpoint.nodes.get(node.node, NodeCheckpoint())
        node.watermark = known.watermark
        node.timers = known.timers
        node.queue.clear()
        node.queue.extend(known.queue)
        node.raised = None
        mine = {k: list(events) for k, events in checkpoint.outputs.items() if k.node == node.node}
        changelog.drain(node.node)
        for event in mine.pop(OutputKey(node.node, OutputKind.CHANGE), []):
            changelog.record(node.node, _change_of(event))
        node.collect(mine)


def _state_of(node: NodeContext) -> OperatorState | None:
    operator = node.operator
    if operator is None:
        return None
    try:
        data = operator.checkpoint()
    except Exception as error:
        what = f"cannot give its state on worker {node.worker}"
        raise node.failed(what, error) from error
    return OperatorState(operator_id(node.node), operator.version, data)


def _check_names(nodes: Sequence[NodeContext], checkpoint: DagCheckpoint) -> None:
    here = {node.node: node for node in nodes}
    for name in checkpoint.nodes:
        if name not in here:
            raise _failed(name, "the graph has no such node")
    for name, node in here.items():
        known = checkpoint.nodes.get(name)
        if known is None:
            raise _failed(name, "the checkpoint has no such node")
        if (known.state is None) != (node.operator is None):
            raise _failed(
                name,
                "the checkpoint has no state of its operator"
                if known.state is None
                else "the checkpoint has state, and no operator is registered",
            )


def _restore_operators(nodes: Sequence[NodeContext], checkpoint: DagCheckpoint) -> None:
    undo: list[tuple[Operator, int, bytes]] = []
    states = checkpoint.operators
    for node in nodes:
        operator, state = node.operator, states.get(node.node)
        if operator is None or state is None:
            continue
        try:
            undo.append((operator, operator.version, operator.checkpoint()))
            operator.restore(state.version, state.data)
        except Exception as error:
            # The one that failed has promised to be as it was.
            _undo(node, undo[:-1])
            raise _failed(node.node, str(error)) from error


def _undo(node: NodeContext, undo: Sequence[tuple[Operator, int, bytes]]) -> None:
    try:
        for operator, version, before in undo:
            operator.restore(version, before)
    except Exception as error:
        what = "failed to be restored, and an operator could not take its own state back"
        raise node.failed(what, error) from error


def _change_of(event: Event) -> Change:
    weight = event.batch.column(WEIGHT)[0].as_py()
    rows = event.batch.drop_columns([WEIGHT])
    return Change(Event(event.time, rows), weight)


def _failed(node: str, reason: str) -> RestoreFailed:
    return RestoreFailed.of(f"cannot restore {node}: {reason}", node=node, reason=reason)
