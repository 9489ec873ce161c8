"""Taking and restoring the checkpoint of running nodes; a restore is all or nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from capstan.pipeline.engine.checkpoint import DagCheckpoint, NodeCheckpoint
from capstan.pipeline.engine.node import NodeContext
from capstan.pipeline.graph.changelog import Changelog
from capstan.pipeline.graph.errors import RestoreFailed
from capstan.pipeline.graph.events import Event, OutputKey, OutputKind
from capstan.pipeline.graph.graph import operator_id
from capstan.pipeline.graph.operator import Operator, OperatorState
from capstan.pipeline.graph.signature import Signature, Signatures, require_unchanged


def snapshot_of(
    nodes: Iterable[NodeContext], signatures: Signatures, checkpoint_id: int | None
) -> DagCheckpoint:
    """Take the checkpoint of these nodes, in their order."""
    checkpoints: dict[str, NodeCheckpoint] = {}
    outputs: dict[OutputKey, tuple[Event, ...]] = {}
    for node in nodes:
        checkpoints[node.node] = NodeCheckpoint(
            _state_of(node, signatures.get(node.node)),
            node.watermark,
            node.timers,
            tuple(node.queue),
        )
        outputs |= {key: tuple(events) for key, events in node.collected().items()}
    return DagCheckpoint(checkpoints, outputs, checkpoint_id)


def restore(
    nodes: Sequence[NodeContext],
    changelog: Changelog,
    checkpoint: DagCheckpoint,
    signatures: Signatures,
) -> None:
    """Restore all of a checkpoint into running nodes, or nothing when it fails."""
    _check_names(nodes, checkpoint)
    require_unchanged(checkpoint.signatures, signatures)
    for node in nodes:
        changes = checkpoint.outputs.get(OutputKey(node.node, OutputKind.CHANGE), ())
        _check_changes(node.node, len(changes), changelog)
    targets = [(node, node.operator) for node in nodes if node.operator is not None]
    # All states are saved before the first change, so that a failure here needs no undo.
    before = [_save(node, operator) for node, operator in targets]
    states = checkpoint.operators
    for number, (node, operator) in enumerate(targets):
        state = states[node.node]
        try:
            operator.restore(state.version, state.data)
        except Exception as error:
            # The failed operator guarantees that it is unchanged.
            _undo(node, before[:number])
            raise _failed(node.node, str(error)) from error
    for node in nodes:  # This cannot fail.
        saved = checkpoint.nodes[node.node]
        node.watermark, node.timers, node.raised = saved.watermark, saved.timers, None
        node.queue.clear()
        node.queue.extend(saved.queue)
        outputs = {k: list(v) for k, v in checkpoint.outputs.items() if k.node == node.node}
        node.collect(outputs)


def _check_changes(node: str, changes: int, changelog: Changelog) -> None:
    if changes and not changelog.recording(node):
        raise _failed(node, f"its changelog is off, and {changes} changes would be lost")
    if changes > changelog.capacity:
        raise _failed(node, f"its changelog holds {changelog.capacity} of {changes} changes")


def _state_of(node: NodeContext, signature: Signature | None) -> OperatorState | None:
    operator = node.operator
    if operator is None:
        return None
    try:
        data = operator.checkpoint()
    except Exception as error:
        raise node.failed(f"cannot return its state on worker {node.worker}", error) from error
    return OperatorState(operator_id(node.node), operator.version, data, signature)


def _check_names(nodes: Sequence[NodeContext], checkpoint: DagCheckpoint) -> None:
    by_name = {node.node: node for node in nodes}
    for name in checkpoint.nodes:
        if name not in by_name:
            raise _failed(name, "the graph has no such node")
    for name, node in by_name.items():
        saved = checkpoint.nodes.get(name)
        if saved is None:
            raise _failed(name, "the checkpoint has no such node")
        if (saved.state is None) != (node.operator is None):
            raise _failed(
                name,
                "the checkpoint has no state for its operator"
                if saved.state is None
                else "the checkpoint has a state, but no operator is registered",
            )


def _save(node: NodeContext, operator: Operator) -> tuple[Operator, int, bytes]:
    try:
        return operator, operator.version, operator.checkpoint()
    except Exception as error:
        reason = f"its current state cannot be saved for an undo: {error}"
        raise _failed(node.node, reason) from error


def _undo(node: NodeContext, undo: Sequence[tuple[Operator, int, bytes]]) -> None:
    try:
        for operator, version, before in undo:
            operator.restore(version, before)
    except Exception as error:
        text = "failed to restore, and an operator could not return to its previous state"
        raise node.failed(text, error) from error


def _failed(node: str, reason: str) -> RestoreFailed:
    return RestoreFailed.create(f"cannot restore {node}: {reason}", node=node, reason=reason)
