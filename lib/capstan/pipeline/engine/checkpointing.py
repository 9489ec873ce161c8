"""Taking and restoring the checkpoint of running nodes; a restore is all or nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class Restoring:
    """A restore of one checkpoint into running nodes."""

    nodes: Sequence[NodeContext]
    changelog: Changelog
    checkpoint: DagCheckpoint
    signatures: Signatures

    def run(self) -> None:
        """Restore all of the checkpoint, or nothing when it fails."""
        _check_names(self.nodes, self.checkpoint)
        require_unchanged(self.checkpoint.signatures, self.signatures)
        for node in self.nodes:
            self._check_changes(node.node)
        states = self.checkpoint.operators
        targets = [(node, node.operator) for node in self.nodes if node.operator is not None]
        # All states are saved before the first change, so that a failure here needs no undo.
        before = [_save(node, operator) for node, operator in targets]
        for number, (node, operator) in enumerate(targets):
            state = states[node.node]
            try:
                operator.restore(state.version, state.data)
            except Exception as error:
                # The failed operator guarantees that it is unchanged.
                _undo(node, before[:number])
                raise _failed(node.node, str(error)) from error
        self._restore_nodes()

    def _restore_nodes(self) -> None:
        """Restore everything but the states of operators; this cannot fail."""
        outputs = self.checkpoint.outputs.items()
        for node in self.nodes:
            saved = self.checkpoint.nodes[node.node]
            node.watermark = saved.watermark
            node.timers = saved.timers
            node.queue.clear()
            node.queue.extend(saved.queue)
            node.raised = None
            node.collect({key: list(events) for key, events in outputs if key.node == node.node})

    def _check_changes(self, node: str) -> None:
        changes = self.checkpoint.outputs.get(OutputKey(node, OutputKind.CHANGE), ())
        if changes and not self.changelog.recording(node):
            reason = f"its changelog is off, and {len(changes)} changes would be lost"
            raise _failed(node, reason)
        if len(changes) > self.changelog.capacity:
            reason = f"its changelog holds {self.changelog.capacity} of {len(changes)} changes"
            raise _failed(node, reason)


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
