"""Takes the checkpoint of running nodes, and puts one back: all of it or nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from capstan.pipeline.engine.checkpoint import DagCheckpoint, NodeCheckpoint
from capstan.pipeline.engine.node import NodeContext
from capstan.pipeline.graph.changelog import Change, Changelog
from capstan.pipeline.graph.errors import RestoreFailed
from capstan.pipeline.graph.events import WEIGHT, Event, OutputKey, OutputKind
from capstan.pipeline.graph.graph import operator_id
from capstan.pipeline.graph.operator import Operator, OperatorState
from capstan.pipeline.graph.signature import Signature, Signatures, require_unchanged


def snapshot_of(
    nodes: Iterable[NodeContext],
    changelog: Changelog,
    signatures: Signatures,
    checkpoint_id: int | None,
) -> DagCheckpoint:
    """What these nodes know, in their order.

    Raises:
        OperatorFailed: An operator cannot give its state.
    """
    taken: dict[str, NodeCheckpoint] = {}
    outputs: dict[OutputKey, tuple[Event, ...]] = {}
    for node in nodes:
        taken[node.node] = NodeCheckpoint(
            _state_of(node, signatures.get(node.node)),
            node.watermark,
            node.timers,
            tuple(node.queue),
        )
        outputs |= {key: tuple(events) for key, events in node.collected().items()}
        changes = changelog.peek(node.node)
        if changes:
            key = OutputKey(node.node, OutputKind.CHANGE)
            outputs[key] = tuple(change.weighted() for change in changes)
    return DagCheckpoint(taken, outputs, checkpoint_id)


@dataclass(frozen=True, slots=True)
class Restoring:
    """A checkpoint on its way back into running nodes.

    Attributes:
        nodes: The nodes.
        changelog: Where their changes go.
        checkpoint: What is put back.
        signatures: Of their operators.
    """

    nodes: Sequence[NodeContext]
    changelog: Changelog
    checkpoint: DagCheckpoint
    signatures: Signatures

    def check(self, *, allow_missing: bool) -> None:
        """Check all that can be told before anything is changed.

        Raises:
            RestoreFailed: A node is missing, or changes would be lost.
            StateChanged: A state is that of another operator.
        """
        if not allow_missing:
            _check_names(self.nodes, self.checkpoint)
        require_unchanged(self.checkpoint.signatures, self.signatures)
        for node in self.nodes:
            self._check_changes(node.node)

    def operators(self) -> Iterator[tuple[NodeContext, Operator, OperatorState]]:
        """The operators that get a state, each with its node and the state."""
        states = self.checkpoint.operators
        for node in self.nodes:
            if node.operator is not None and node.node in states:
                yield node, node.operator, states[node.node]

    def put_back(self) -> None:
        """Put back everything but the states of operators, which cannot fail."""
        outputs = self.checkpoint.outputs
        for node in self.nodes:
            known = self.checkpoint.nodes.get(node.node, NodeCheckpoint())
            node.watermark = known.watermark
            node.timers = known.timers
            node.queue.clear()
            node.queue.extend(known.queue)
            node.raised = None
            mine = {key: list(each) for key, each in outputs.items() if key.node == node.node}
            self.changelog.drain(node.node)
            for event in mine.pop(OutputKey(node.node, OutputKind.CHANGE), []):
                self.changelog.record(node.node, _change_of(event))
            node.collect(mine)

    def _check_changes(self, node: str) -> None:
        changes = self.checkpoint.outputs.get(OutputKey(node, OutputKind.CHANGE), ())
        if changes and not self.changelog.recording(node):
            reason = f"its changelog is switched off, and {len(changes)} changes would be lost"
            raise _failed(node, reason)
        if len(changes) > self.changelog.capacity:
            reason = f"its changelog holds {self.changelog.capacity} changes of {len(changes)}"
            raise _failed(node, reason)


def restore_all(parts: Sequence[Restoring], *, allow_missing: bool) -> None:
    """Put checkpoints back: all of them or, when one fails, none.

    Raises:
        RestoreFailed: Naming the node and the reason; nothing was changed.
        StateChanged: A state is that of another operator; nothing was changed.
        OperatorFailed: And an operator could not even take its own state back.
    """
    for part in parts:
        part.check(allow_missing=allow_missing)
    found = [each for part in parts for each in part.operators()]
    # All of them before the first change: where one cannot be had, nothing has to be undone.
    before = [_kept(node, operator) for node, operator, _ in found]
    for number, (node, operator, state) in enumerate(found):
        try:
            operator.restore(state.version, state.data)
        except Exception as error:
            # The one that failed has promised to be as it was.
            _undo(node, before[:number])
            raise _failed(node.node, str(error)) from error
    for part in parts:
        part.put_back()


def _state_of(node: NodeContext, signature: Signature | None) -> OperatorState | None:
    operator = node.operator
    if operator is None:
        return None
    try:
        data = operator.checkpoint()
    except Exception as error:
        what = f"cannot give its state on worker {node.worker}"
        raise node.failed(what, error) from error
    return OperatorState(operator_id(node.node), operator.version, data, signature)


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


def _kept(node: NodeContext, operator: Operator) -> tuple[Operator, int, bytes]:
    try:
        return operator, operator.version, operator.checkpoint()
    except Exception as error:
        reason = f"what it knows now cannot be kept to be put back: {error}"
        raise _failed(node.node, reason) from error


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
    return RestoreFailed.create(f"cannot restore {node}: {reason}", node=node, reason=reason)
