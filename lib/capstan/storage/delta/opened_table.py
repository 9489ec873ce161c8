"""Delta tables opened as they are now, without a JVM and without a cache.

Every call into delta-rs that reads a log or a table goes through `OpenedTable`: what it raises, and
what Rust panics with, becomes an error of Capstan that names the table.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
from arro3.core import Table
from deltalake.exceptions import TableNotFoundError

from capstan.errors import CapstanError, SystemFailureError, translation
from capstan.storage.s3_access import storage_options

_CHECK_LOG = "check that its _delta_log is complete; restore missing files from a backup"
# Reader features that leave the rows of a table exactly those of its files.
_HARMLESS = frozenset({"timestampNtz"})


class OpenedTable(deltalake.DeltaTable):
    """A Delta table whose failures are errors of Capstan."""

    def __init__(self, path: str, version: int | None = None) -> None:
        """Open the table at `path`, in a version or the newest one."""
        self.path = path
        self._transactions: dict[tuple[str, int], int | None] = {}
        with _reading(path):
            super().__init__(path, version=version, storage_options=storage_options(path))

    @property
    def is_plain(self) -> bool:
        """Whether the table's rows are those of its files, by the names that its columns have."""
        # Deletion vectors, mapped columns and the like change that: only Spark reads such a table.
        protocol = self.protocol()
        mapped = protocol.min_reader_version == 2
        return not mapped and set(protocol.reader_features or ()) <= _HARMLESS

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

    def transaction_version(self, app_id: str) -> int | None:
        """The last version of a transaction identity; None without one."""
        # Each time, delta-rs reads all commits since the last checkpoint.
        key = app_id, self.version()
        if key not in self._transactions:
            with _reading(self.path):
                self._transactions[key] = super().transaction_version(app_id)
        return self._transactions[key]

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
