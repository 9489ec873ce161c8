"""Lookup tables: Delta tables by whose rows the records of a source are completed."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from capstan.core.config import check_name, check_target


@dataclass(frozen=True, slots=True)
class Lookup:
    """A Delta table of which each record of a source gets the row with its key.

    A run reads one version of it. Every record stays; its columns from the table are null when no
    row has its key, or a part of the key is null. A key must not have several rows.

    Attributes:
        name: Name in requests and certificates.
        source: Name of the source in the graph whose records it completes.
        table: A table of the lake by its name, the path of a Delta table, or a table of a catalog
            by its name, such as `main.shop.customers`.
        left_on: Key columns of the records.
        right_on: Key columns of the table, in the same order and of the same types.
        columns: Columns of the table that the records get; the source declares them.
        prefix: Prefix of these columns' names in the source.
        version: The version that each run reads; None for the newest at its planning.

    Raises:
        InvalidRequestError: `CAP-NAME` for the name or the table.
    """

    name: str
    source: str
    table: str
    left_on: tuple[str, ...]
    right_on: tuple[str, ...]
    columns: tuple[str, ...]
    prefix: str = ""
    version: int | None = None

    def __post_init__(self) -> None:
        check_name("lookup", self.name)
        check_target(self.table, "table")

    @property
    def names(self) -> dict[str, str]:
        """Its columns in the table, by their names in the source."""
        return {self.prefix + column: column for column in self.columns}

    @property
    def problem(self) -> str | None:
        """What is wrong with its columns or its version; None for nothing."""
        if not self.left_on or len(self.left_on) != len(self.right_on):
            return "must have as many key columns of the records as of the table, at least one"
        if not self.columns or len(set(self.columns)) != len(self.columns):
            return "must name each column that it gives once"
        if self.version is not None and self.version < 0:
            return f"cannot have the version {self.version}"
        return None

    @property
    def settings(self) -> dict[str, object]:
        """What decides the columns that it gives, except the version."""
        settings = asdict(self)
        del settings["version"]
        return settings
