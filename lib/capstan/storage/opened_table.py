"""Delta tables opened as they are now, without a JVM and without a cache."""

from __future__ import annotations

import deltalake

from capstan.storage.s3_access import storage_options


def opened(path: str, version: int | None = None) -> deltalake.DeltaTable:
    """The table at `path`, in a version or the newest one.

    Raises:
        TableNotFoundError: There is no table.
        DeltaError: It cannot be read.
    """
    return deltalake.DeltaTable(path, version=version, storage_options=storage_options(path))
