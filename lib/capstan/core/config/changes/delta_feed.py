"""The change feed of a Delta table.

An update is a delete of the row before it and an insert of the row after it, so a change of the key
needs nothing else. Both have the version of their commit, in which all deletes come first.
"""

from __future__ import annotations

from capstan.core.config.changes.model import Changes
from capstan.core.config.changes.preset import Preset, known_only

_KNOWN = "'insert', 'update_preimage', 'update_postimage', 'delete'"
_DELETES = "('delete', 'update_preimage')"


def preset(changes: Changes) -> Preset:
    """The declarations for a change feed."""
    return Preset(
        keys=changes.keys,
        select=(
            "* EXCEPT (_change_type, _commit_version, _commit_timestamp)",
            "_change_type AS __change_type",
            "_commit_version AS __commit_version",
            f"CASE WHEN _change_type IN {_DELETES} THEN 0 ELSE 1 END AS __part",
            "_commit_timestamp AS __commit_timestamp",
        ),
        where=known_only(
            f"CASE WHEN _change_type IN ({_KNOWN}) THEN NULL "
            "ELSE concat('unknown _change_type: ', coalesce(_change_type, 'none')) END"
        ),
        sequence_by=("__commit_version", "__part"),
        delete_when=f"__change_type IN {_DELETES}",
        options=(("readChangeFeed", "true"),),
    )
