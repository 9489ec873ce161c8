"""Which of Spark's functions depend on the order of rows, by their classes, and why."""

from __future__ import annotations

import re
from collections.abc import Mapping

_FIRST = "takes the value of whichever row comes first"
_LAST = "takes the value of whichever row comes last"
_BY = "max_by(x, struct(y, x)) takes one by the values alone; so do min and max"
_DIGEST = "is estimated from parts of the rows, and comes out otherwise of other parts"
_CLOCK = "reads the clock"
_CHANCE = "is drawn by chance"
_LAYOUT = "goes by the files and partitions that rows lie in"
_SESSION = "goes by who runs it, and where"
HELD = "use what records hold"

FREE: Mapping[str, tuple[str, str]] = {
    "First": (_FIRST, _BY),
    "AnyValue": (_FIRST, _BY),
    "Last": (_LAST, _BY),
    "Mode": (
        "takes any of the values that are equally frequent",
        "write mode() WITHIN GROUP (ORDER BY x)",
    ),
    "ApproximatePercentile": (_DIGEST, "percentile and median are exact"),
    "HistogramNumeric": (_DIGEST, "count by classes of the values"),
    "MonotonicallyIncreasingID": (_LAYOUT, HELD),
    "SparkPartitionID": (_LAYOUT, HELD),
    "InputFileName": (_LAYOUT, HELD),
    "InputFileBlockStart": (_LAYOUT, HELD),
    "InputFileBlockLength": (_LAYOUT, HELD),
    **dict.fromkeys(("Rand", "Randn", "Uniform", "RandStr", "Uuid", "Shuffle"), (_CHANCE, HELD)),
    **dict.fromkeys(
        ("CurrentDate", "CurrentTime", "CurrentTimestamp", "Now", "LocalTimestamp"),
        (_CLOCK, HELD),
    ),
    **dict.fromkeys(
        ("CurrentUser", "CurrentDatabase", "CurrentCatalog", "CurrentTimeZone"), (_SESSION, HELD)
    ),
}
"""Those whose value nothing determines: why, and what to write in their place."""

SKETCH = re.compile(r"(Hll|Theta|Tuple|Kll)\w*Agg\w*|ApproxTopK(Accumulate|Combine)?|\w*SketchAgg")
"""Sketches; those that merge by the greatest or by sums alone are in `SURE`."""

SURE = frozenset({"HyperLogLogPlusPlus", "CountMinSketchAgg", "BloomFilterAggregate"})
"""Estimates that are the same of all parts: registers are merged by max, counters are added."""

SHUFFLED = frozenset({"CollectList", "CollectSet"})
"""Those that give an array whose elements are sure, and their order is not."""

SUMS = frozenset({"Sum", "Average"})
"""Sums, which are exact of integers and decimals, and rounded at each step of floats."""

MOMENTS = frozenset({
    "VariancePop", "VarianceSamp", "StddevPop", "StddevSamp", "Skewness", "Kurtosis", "Corr",
    "CovPopulation", "CovSample", "RegrSlope", "RegrIntercept", "RegrR2", "RegrReplacement",
    "RegrSXX", "RegrSXY", "RegrSYY", "PearsonCorrelation", "Product", "VectorSum", "VectorAvg",
    "PandasCovar", "PandasKurtosis", "PandasProduct", "PandasSkewness", "PandasStddev",
    "PandasVariance",
})  # fmt: skip
"""Sums of floats, whatever they are of."""

OWN_CODE = frozenset({"PythonUDAF", "ScalaUDAF", "ScalaAggregator"})
"""Aggregates that are not Spark's: one that gives a float is taken for a sum of floats."""

SMOOTH = frozenset({
    "Alias", "Add", "Subtract", "Multiply", "Divide", "UnaryMinus", "UnaryPositive", "Abs",
    "Coalesce", "If", "CaseWhen", "Greatest", "Least", "NaNvl", "TryEval", "With",
    "CommonExpressionDef", "KnownFloatingPointNormalized", "NormalizeNaNAndZero", "KnownNotNull",
    "Sqrt", "Cbrt", "Pow", "Exp", "Expm1", "Log", "Log2", "Log10", "Log1p", "Logarithm", "Hypot",
    "Sin", "Cos", "Tan", "Sinh", "Cosh", "Tanh", "Asin", "Acos", "Atan", "Atan2", "ToDegrees",
    "ToRadians", "CreateNamedStruct", "GetStructField", "CreateArray", "GetArrayItem", "SortOrder",
    "AggregateExpression", "Max", "Min", "Percentile", "PivotFirst",
    *SUMS, *MOMENTS,
})  # fmt: skip
"""Those that make of almost equal values almost equal ones."""

BLIND = frozenset({"IsNull", "IsNotNull", "AtLeastNNonNulls", "Count", "Size"})
"""Those to which almost equal values are equal."""

SORTING = frozenset({
    "SortArray", "Size", "ArrayMax", "ArrayMin", "ArrayContains", "ArrayExists", "ArrayForAll",
})  # fmt: skip
"""Those to which an array is the same in any order of its elements."""

PASSING = frozenset({
    "Alias", "AggregateExpression", "ArrayTransform", "ArrayFilter", "ArrayDistinct", "Coalesce",
    "If", "CaseWhen", "With", "CommonExpressionDef", "KnownNotNull",
})  # fmt: skip
"""Those that give of an array in any order one of the same elements in any order."""

RANKS = frozenset({"Rank", "DenseRank", "PercentRank", "CumeDist"})
"""Functions over a window that are the same for rows of one place."""

PLACES = frozenset({
    "RowNumber", "Lead", "Lag", "NTile", "NthValue", "First", "Last", "CollectList", "ListAgg",
})  # fmt: skip
"""Functions over a window that go by the place of each row."""

EXTREMES = frozenset({"MaxBy", "MinBy", "MaxMinByK"})
