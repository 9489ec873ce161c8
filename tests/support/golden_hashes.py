"""Content hashes that must never change: otherwise existing tapes would become unreadable."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Final

Pair = tuple[int, int]

GOLDEN: Final[Mapping[str, Pair]] = {
    "1": (6895112574479753909, 1939602143084073197),
    "CAST(NULL AS INT), 1": (2917320710956379866, 6365961362429270599),
    "1, CAST(NULL AS INT)": (6895112574479753909, 1939602143084073197),
    "true, CAST(2 AS TINYINT), -3L": (5632977950192156717, -2763472138614955720),
    "1.5D, CAST('NaN' AS DOUBLE), -0.0D": (-7547325800413386221, -5922277432571765913),
    "'EWR', '', 'Zürich'": (-6849399296263733553, -2960035827320399948),
    "X'00FF'": (-3711674255097279055, -3955892471570961878),
    "CAST(12.50 AS DECIMAL(10, 2)), CAST(-1 AS DECIMAL(38, 0))": (
        4479005817361628405,
        -9073199180815151842,
    ),
    "DATE '2013-03-01', TIMESTAMP '2013-03-01 06:30:00.000001Z'": (
        -1180701561887859491,
        3254414188661448465,
    ),
    "TIMESTAMP_NTZ '2013-03-01 06:30:00'": (-8616451732833429454, 7873319074507652941),
    "array(1, NULL), array('a', 'b')": (-2012456717766013274, -8421090128814047238),
    "named_struct('x', 1, 'y', CAST(NULL AS STRING))": (4745044495909926160, 6625967540209765088),
    "map('b', 1, 'a', CAST(NULL AS INT))": (5857988262245624448, 4506823478851325027),
    "array(named_struct('x', array(1), 'y', map(1, 2.0D)))": (
        5228312984794035381,
        -3779702269318963601,
    ),
}
"""Both hashes of rows, by their values in SQL."""

KEYS: Final[Mapping[str, tuple[Hashable, ...]]] = {
    "1": (1,),
    "CAST(NULL AS INT), 1": (None, 1),
    "1, CAST(NULL AS INT)": (1, None),
    "true, CAST(2 AS TINYINT), -3L": (True, 2, -3),
    "'EWR', '', 'Zürich'": ("EWR", "", "Zürich"),
    "X'00FF'": (b"\x00\xff",),
    "CAST(12.50 AS DECIMAL(10, 2)), CAST(-1 AS DECIMAL(38, 0))": (Decimal("12.50"), Decimal(-1)),
    "DATE '2013-03-01', TIMESTAMP '2013-03-01 06:30:00.000001Z'": (
        date(2013, 3, 1),
        datetime(2013, 3, 1, 6, 30, 0, 1, UTC),
    ),
}
"""The hashes of rows that can be keys, as Python computes them."""
