"""What of a query's output depends on the order of its rows, told from its analysed plan."""

from __future__ import annotations

from capstan.core.config.order.plans import Depends, examine
from capstan.core.config.order.rules import Cause, Grade
from capstan.core.config.order.tree import Expression, Node

__all__ = ["Cause", "Depends", "Expression", "Grade", "Node", "examine"]
