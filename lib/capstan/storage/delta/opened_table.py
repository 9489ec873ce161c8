"""Delta tables opened without a JVM, once by all who need them in a process.

Every call into delta-rs that reads a log or a table goes through `OpenedTable`: what it raises, and
what Rust panics with, becomes an error of Capstan that names the table.

delta-rs reads all commits since the last checkpoint to open a table, twice, and again for each
transaction identity. So a table that is open, and that nobody uses, is brought up to date by the
commits that are new. Whoever uses one sees it as it was.
"""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakValueDictionary

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
from arro3.core import Table
from deltalake.exceptions import TableNotFoundError

from capstan.errors import CapstanError, SystemFailureError, translation
from capstan.storage.delta import table_cache
from capstan.storage.lake import has_entry, newest_entry, read_text
from capstan.storage.s3_access import storage_options

Actions = tuple[Mapping[str, Any], ...]
"""The actions of a commit, as in its log entry."""

_CHECK_LOG = "check that its _delta_log is complete; restore missing files from a backup"
# Reader features that leave the rows of a table exactly those of its files.
_HARMLESS = frozenset({"timestampNtz"})
# Commits of which the actions are kept, and which are read one by one.
_FEW = 4


def is_plain(protocol: Mapping[str, Any]) -> bool:
    """Whether the rows of tables with a protocol action are those of their files."""
    # Deletion vectors, mapped columns and the like change that: only Spark reads such a table.
    mapped = protocol["minReaderVersion"] == 2
    return not mapped and set(protocol.get("readerFeatures", ())) <= _HARMLESS


class OpenedTable(deltalake.DeltaTable):
    """A Delta table whose failures are errors of Capstan."""

    def __init__(self, path: str, version: int | None = None) -> None:
        """Open the table at `path`, in a version or the newest one."""
        self.path = path
        # For each transaction identity the table's version, and its own last version there.
        self._transactions: dict[str, tuple[int, int | None]] = {}
        self._actions: dict[int, Actions] = {}
        with _reading(path):
            super().__init__(path, version=version, storage_options=storage_options(path))

    @property
    def is_plain(self) -> bool:
        """Whether the table's rows are those of its files, by the names that its columns have."""
        protocol = self.protocol()
        features = protocol.reader_features or ()
        return is_plain(
            {"minReaderVersion": protocol.min_reader_version, "readerFeatures": features}
        )

    def require_plain(self) -> None:
        """Check that Arrow can read the table's files."""
        if not self.is_plain:
            features = sorted(self.protocol().reader_features or ("columnMapping",))
            raise SystemFailureError(
                "CAP-TABLE",
                f"the Delta table at {self.path} has features that its readers here do not know: "
                f"{', '.join(features)}",
                translation.UNKNOWN_FEATURE_HINT,
                path=self.path,
            )

    def files(self) -> pa.Table:
        """The files of the table, with the bounds of their columns: `min.x`, `max.x`, ..."""
        return pa.table(self.get_add_actions(flatten=True))

    def update_incremental(self) -> None:
        """Read the commits that are new."""
        with _reading(self.path):
            super().update_incremental()

    def get_add_actions(self, flatten: bool = False) -> Table:
        """The files of the table, with their statistics."""
        with _reading(self.path):
            return super().get_add_actions(flatten=flatten)

    def entries(self, paths: Collection[str]) -> list[dict[str, Any]]:
        """The log's entries of the files that are live among some paths, with their statistics."""
        files = pa.table(self.get_add_actions())
        wanted = pc.is_in(files["path"], value_set=pa.array(paths, files["path"].type))
        entries: list[dict[str, Any]] = files.filter(wanted).to_pylist()
        return entries

    def history(self, limit: int | None = None) -> list[dict[str, Any]]:
        """The commits of the table, newest first."""
        with _reading(self.path):
            return super().history(limit)

    def actions(self, version: int) -> Actions:
        """The actions of a commit of the table; those of the few that were read last are kept."""
        actions = self._actions.get(version)
        if actions is None:
            text = read_text(f"{self.path}/_delta_log/{version:020}.json")
            actions = self._actions[version] = tuple(map(json.loads, text.splitlines()))
            for former in list(self._actions)[:-_FEW]:
                self._actions.pop(former, None)
        return actions

    def transaction_version(self, app_id: str) -> int | None:
        """The last version of a transaction identity; None without one."""
        now = self.version()
        at, last = self._transactions.get(app_id, (-1, None))
        if at != now:
            last = self._transaction(app_id, range(at + 1, now + 1), last)
            self._transactions[app_id] = now, last
        return last

    def _transaction(self, app: str, new: range, last: int | None) -> int | None:
        """The last version of a transaction identity, from the version before some commits."""
        if new.start and len(new) <= _FEW:
            # It says better itself what cannot be read.
            with suppress(OSError, ValueError, AttributeError):
                for version in reversed(new):
                    for action in self.actions(version):
                        if action.get("txn", {}).get("appId") == app:
                            return int(action["txn"]["version"])
                return last
        # Each time, delta-rs reads all commits since the last checkpoint.
        with _reading(self.path):
            return super().transaction_version(app)

    def note_commit(self, transactions: Mapping[str, int]) -> None:
        """Note that the newest commit, with these transactions alone, is of who has the table."""
        now = self.version()
        known = {app: last for app, (at, last) in self._transactions.items() if at == now - 1}
        self._transactions.update(
            (app, (now, last)) for app, last in {**known, **transactions}.items()
        )

    def has_transaction(self, app: str, version: int) -> bool:
        """Whether the table has a transaction of an identity, or a later one."""
        last = self.transaction_version(app)
        return last is not None and last >= version

    def to_pyarrow_dataset(self, *args: Any, **kwargs: Any) -> Any:
        """The rows of the table as a dataset."""
        self.require_plain()
        with _reading(self.path):
            return super().to_pyarrow_dataset(*args, **kwargs)

    def to_pyarrow_table(self, *args: Any, **kwargs: Any) -> Any:
        """The rows of the table."""
        with _reading(self.path):
            return super().to_pyarrow_table(*args, **kwargs)


class _Shared:
    """An open table, and all who use it; thread-safe."""

    def __init__(self, table: OpenedTable) -> None:
        self._table, self._views = table, WeakValueDictionary[int, OpenedTable]()
        self._lock, self._is_taken = threading.Lock(), False

    def view(self) -> OpenedTable | None:
        """The table, for a reader; None when it has been taken."""
        with self._lock:
            if self._is_taken:
                return None
            view = copy.copy(self._table)
            self._views[id(view)] = view
            return view

    def take(self) -> OpenedTable | None:
        """The table, for one who changes it; None when others use it, or it has been taken."""
        with self._lock:
            if self._is_taken or self._views:
                return None
            self._is_taken = True
            return self._table


# The kind of value in the cache of tables.
_OPENED = "table"


def newest_table(path: str) -> OpenedTable:
    """The newest version of a table; it stays as it is for whoever has it."""
    while True:
        read = lambda: _Shared(_brought_up(path) or OpenedTable(path))  # noqa: E731
        shared = table_cache.cached(_OPENED, path, read)
        table = shared.view()
        if table is not None:
            return table
        table_cache.drop(_OPENED, path, shared)


def own_table(path: str) -> OpenedTable:
    """The newest version of a table, for one who changes it, and keeps it if that succeeds."""
    newest, cached = newest_entry(path), table_cache.last(_OPENED, path)
    if cached is not None and cached[0] == newest:
        table = cached[1].take()
        table_cache.drop(_OPENED, path, cached[1])
    else:
        table = _brought_up(path)
    return table or OpenedTable(path)


def keep_table(path: str, table: OpenedTable, *, own: bool = True) -> None:
    """Keep a table for others; its newest commit is this process's `own`, or was only looked at."""
    table_cache.keep(_OPENED, path, table.version(), _Shared(table), own=own)


def _brought_up(path: str) -> OpenedTable | None:
    """A table that was opened before, with all commits since; None if there is none to be had."""
    cached = table_cache.last(_OPENED, path)
    # In the place of a table that was deleted there may be another one.
    if cached is None or not has_entry(path, cached[0]):
        return None
    table: OpenedTable | None = cached[1].take()
    if table is not None:
        try:
            table.update_incremental()
        except SystemFailureError:
            return None  # It is opened as a whole, or that says what is wrong.
    return table


def missing_table(path: str) -> SystemFailureError:
    """The error of a path without a table."""
    return SystemFailureError(
        "CAP-TABLE",
        f"there is no Delta table at {path}",
        "check the lake and the name; `capstan streams` lists the captured streams",
        path=path,
    )


@contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        yield
    except TableNotFoundError as error:
        raise missing_table(path) from error
    except BaseException as error:
        if isinstance(error, CapstanError) or not translation.is_failure(error):
            raise
        known = translation.translate(error)
        cause = translation.root_message(error)
        code, hint = ("CAP-TABLE", _CHECK_LOG) if known is None else (known.code, known.hint)
        message = f"cannot read the Delta table at {path}: {cause}"
        raise SystemFailureError(code, message, hint, path=path) from error
