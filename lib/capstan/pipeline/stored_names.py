"""Stored names and hashes of code that has moved since.

A state's signatures and a pipeline's hash contain names of functions, and the hash the text of
modules. For Capstan's own pipelines that have moved, both keep their former values.
"""

from __future__ import annotations

from typing import Final

_STORED: Final = {
    "capstan.demo.pipelines": "capstan.workloads.flight_pipelines",
    "capstan.demo.flights": "capstan.workloads.flights",
}
_MODULES: Final = {stored: module for module, stored in _STORED.items()}
# Hashes of a pipeline: with its present text, and before its module moved.
_HASHES: Final[dict[str, str]] = {
    "18dbd163fd20afe188332213c3055e75ab05823e9a310f8569a3ccf952aebf03": (
        "49298cdd5e938e32fe3452e6c72cfe4cced5fc6f5d2c82300b654d942ff2a10c"
    ),
    "2fa9360ecb6e078af388566dec861c27e04403e35c699620e83c76d4eca92a65": (
        "1eb739636973f9c534e55401a6a70ad516109e8e741506e80eaadb3f481252f5"
    ),
    "0001b59e6edecae1254fe5d8ec7c4b133f0ab8273bb972be6cd68f4a1beb8c3e": (
        "8c3c485b98e324f278114cea662c274117b4133f36e7dbaa2db725c4b9f54386"
    ),
}


def stored(reference: str) -> str:
    """Return `module` or `module:name` as it is stored."""
    module, colon, name = reference.partition(":")
    return f"{_STORED.get(module, module)}{colon}{name}"


def importable(reference: str) -> str:
    """Return `module` or `module:name` as it is imported."""
    module, colon, name = reference.partition(":")
    return f"{_MODULES.get(module, module)}{colon}{name}"


def stored_hash(code_hash: str) -> str:
    """Return the hash stored for runs of the same code before it moved."""
    return _HASHES.get(code_hash, code_hash)
