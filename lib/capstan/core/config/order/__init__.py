"""Dependence of a query's output on the order of its input rows, found in its analysed plan."""

from __future__ import annotations

from capstan.core.config.order.plans import Depends, examine
from capstan.core.config.order.rules import Cause, Grade
from capstan.core.config.order.tree import Expression, Node

__all__ = ["Cause", "Depends", "Expression", "Grade", "Node", "examine"]
