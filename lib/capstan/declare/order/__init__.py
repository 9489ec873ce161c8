"""What of a query's output depends on the order of its rows, told from its analysed plan."""

from __future__ import annotations

from capstan.declare.order.plans import Depends, examine
from capstan.declare.order.rules import Cause, Grade
from capstan.declare.order.tree import Expression, Node

__all__ = ["Cause", "Depends", "Expression", "Grade", "Node", "examine"]
