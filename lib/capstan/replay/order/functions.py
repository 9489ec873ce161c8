"""Spark's functions whose value depends on the order of rows, by the names of their classes."""

from __future__ import annotations

HELD = "use values of the records"
_FIRST = "takes the value of whichever row comes first"
_BY = "max_by(x, struct(y, x)) chooses by values alone; so do min and max"
_ESTIMATE = "is estimated from parts of the rows, and differs with these parts"
_CLOCK = "CurrentDate", "CurrentTime", "CurrentTimestamp", "Now", "LocalTimestamp"
_SESSION = "CurrentUser", "CurrentDatabase", "CurrentCatalog", "CurrentTimeZone"

LISTED = "lists values in the order of the rows", "sort_array(...) gives the elements an order"
# The whole value depends on it, and Spark does not call them nondeterministic: why, and the remedy.
FREE = {
    "First": (_FIRST, _BY),
    "Last": ("takes the value of whichever row comes last", _BY),
    "Mode": ("takes any of equally frequent values", "write mode() WITHIN GROUP (ORDER BY x)"),
    "ListAgg": (LISTED[0], "write listagg(x) WITHIN GROUP (ORDER BY x)"),
    "ApproximatePercentile": (_ESTIMATE, "percentile and median are exact"),
    "HistogramNumeric": (_ESTIMATE, "count by classes of the values"),
    **dict.fromkeys(_CLOCK, ("reads the clock", HELD)),
    **dict.fromkeys(_SESSION, ("depends on the session", HELD)),
}
# They give an array in the order of rows; of the others, the result is the same in any order.
SHUFFLED = frozenset({"CollectList", "CollectSet"})
SORTING = frozenset({
    "SortArray", "ArraySort", "Size", "ArrayMax", "ArrayMin", "ArrayContains", "ArrayExists",
    "ArrayForAll", "Explode",
})  # fmt: skip
# Aggregates that give one of their values; all others that give floats add them up.
EXACT = FREE.keys() | SHUFFLED | {
    "Max", "Min", "MaxBy", "MinBy", "MaxMinByK", "Percentile", "PercentileDisc", "PivotFirst",
}  # fmt: skip
# Floats that are almost equal come out far apart, or are not told apart.
ROUNDED = frozenset({"Round", "BRound", "Rint", "Signum", "Remainder", "Pmod"})
BLIND = frozenset({"IsNull", "IsNotNull", "AtLeastNNonNulls", "Count", "Size"})
# Window functions: the same for rows that tie in ORDER BY, or of one row in whatever frame.
RANKS = frozenset({"Rank", "DenseRank", "PercentRank", "CumeDist"})
OF_A_ROW = frozenset({"First", "Last", "NthValue", "CollectList", "ListAgg"})
