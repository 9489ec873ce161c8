"""Names and hashes under which what is stored knows code that has moved since.

A pipeline's function is named in its state's signatures and in its hash, and so is the text of its
module. Where Capstan's own pipelines have moved, both count as before.
"""

from __future__ import annotations

from typing import Final

_STORED: Final = {
    "capstan.demo.pipelines": "capstan.workloads.flight_pipelines",
    "capstan.demo.flights": "capstan.workloads.flights",
}
_MODULES: Final = {stored: module for module, stored in _STORED.items()}
# The hash of a pipeline as its text is now, and as it was before its module moved.
_HASHES: Final[dict[str, str]] = {
    "c0ffd73ad5a94ad6765945af591ba7b6cb0bbdc6d13ce255698d2f55badcc537": (
        "49298cdd5e938e32fe3452e6c72cfe4cced5fc6f5d2c82300b654d942ff2a10c"
    ),
    "6654f6e92b708e1cf5a8f57a997eefe92ad66de653a918da83e0ca5ff804c5f2": (
        "1eb739636973f9c534e55401a6a70ad516109e8e741506e80eaadb3f481252f5"
    ),
    "f3a4a6dd6e317deb42bb11dea6c0ded1e593f68988497144fa95c16f65ab914a": (
        "8c3c485b98e324f278114cea662c274117b4133f36e7dbaa2db725c4b9f54386"
    ),
}


def stored(reference: str) -> str:
    """`module` or `module:name` as it is stored."""
    module, colon, name = reference.partition(":")
    return f"{_STORED.get(module, module)}{colon}{name}"


def importable(reference: str) -> str:
    """`module` or `module:name` as it can be imported."""
    module, colon, name = reference.partition(":")
    return f"{_MODULES.get(module, module)}{colon}{name}"


def stored_hash(code_hash: str) -> str:
    """The hash under which runs are stored that were made by the same code before it moved."""
    return _HASHES.get(code_hash, code_hash)
