"""Dependence of a query's output on the order of its input rows, found in its analysed plan."""

from __future__ import annotations

from capstan.replay.order.plans import Depends, examine
from capstan.replay.order.rules import Cause, Grade
from capstan.replay.order.tree import Expression, Node

__all__ = ["Cause", "Depends", "Expression", "Grade", "Node", "examine"]
