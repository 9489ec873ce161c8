"""JVM options and memory of Spark drivers, here and in submissions; does not import Spark."""

from __future__ import annotations

import os
import re
from pathlib import Path

from capstan.errors import InvalidRequestError
from capstan.telemetry.structured_logging import LogFormat, read_format

OPTIONS = "spark.driver.extraJavaOptions"
"""The setting with the JVM options of the driver."""

SHORT = "-XX:TieredStopAtLevel=1"
"""For jobs of a minute or two: they end before the code of the second compiler pays off, which
takes a third of their processor time. Not for large ranges."""

_LOG_LEVELS = ("OFF", "FATAL", "ERROR", "WARN", "INFO", "DEBUG", "TRACE", "ALL")
_MEMORY = re.compile(r"[1-9][0-9]*[kmgt]b?", re.IGNORECASE)
_LOCAL = re.compile(r"local(?:\[(\*|[0-9]+)(?:,[0-9]+)?\])?")
_LOG4J = {
    LogFormat.PLAIN: Path(__file__).parent / "log4j2.properties",
    LogFormat.JSON: Path(__file__).parent / "log4j2-json.properties",
}

# Every query is new code, and most of it is discarded before the second compiler has finished. With
# the default thresholds it takes half of a small batch's CPU. Loops over many rows still reach it.
_COMPILER = " ".join(
    f"-XX:Tier4{name}={count}"
    for name, count in (
        ("InvocationThreshold", 50_000),
        ("MinInvocationThreshold", 6_000),
        ("CompileThreshold", 100_000),
    )
)
# With so much code the JVM's default bound (48 MB for the first compiler alone) fills up soon. Then
# sweeping it takes a third of the processor time.
_CODE_CACHE = "-XX:ReservedCodeCacheSize=512m"

# The default collector runs beside the program: on few cores that takes a fifth of a small batch's
# CPU to shorten pauses, which do not matter here.
_COLLECTOR = "-XX:+UseParallelGC"
# Without its native library, Hadoop starts a program for each mode it sets and each link it reads:
# a hundred in a small batch.
_SPAWN = "-Djdk.lang.Process.launchMechanism=VFORK"
# The zone of the driver's log lines, and of what is not told the session's.
_ZONE = "-Duser.timezone=UTC"
_ANY_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b")


def driver_options(*more: str, level: str | None = "ERROR") -> str:
    """A driver's JVM options, then `more`, whose garbage collector wins.

    `level` is the default of its log; None where the log settings are not on its machine.
    """
    collector = "" if any(map(_ANY_COLLECTOR.search, more)) else _COLLECTOR
    logs = "" if level is None else _quiet_logs(level)
    options = [logs, _ZONE, _COMPILER, _CODE_CACHE, collector, _SPAWN, *more]
    return " ".join(option for option in options if option)


def driver_memory() -> str:
    """The driver's memory: `CAPSTAN_DRIVER_MEMORY`, or half of the machine's, 1 to 4 GiB."""
    memory = os.environ.get("CAPSTAN_DRIVER_MEMORY") or _default_memory()
    if not _MEMORY.fullmatch(memory):
        raise InvalidRequestError(
            "CAP-SETTING",
            f"CAPSTAN_DRIVER_MEMORY is {memory!r}, which is not a memory size",
            "set it to a number and a unit, such as 4g or 800m",
            field="CAPSTAN_DRIVER_MEMORY",
        )
    return memory


def is_local(master: str) -> bool:
    """Whether `master` runs everything in the driver's own JVM."""
    return _LOCAL.fullmatch(master) is not None


def local_settings(master: str) -> dict[str, str]:
    """Settings for the driver of a local `master`: it listens on this machine only."""
    match = _LOCAL.fullmatch(master)
    threads = match.group(1) if match else None
    cores = os.cpu_count() or 1 if threads == "*" else int(threads or 1)
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # An initial number; adaptive execution merges small partitions.
        "spark.sql.shuffle.partitions": str(max(2, 2 * cores)),
    }


def _default_memory() -> str:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        total = 4 << 30
    return f"{min(4096, max(1024, total // 2 // (1 << 20)))}m"


def _quiet_logs(default: str) -> str:
    """The options that send the log to standard error, at a low level by default."""
    level = os.environ.get("CAPSTAN_LOG_LEVEL", default).upper()
    if level not in _LOG_LEVELS:
        raise InvalidRequestError(
            "CAP-SETTING",
            f"CAPSTAN_LOG_LEVEL is {level!r}, which is not a log level",
            f"set it to one of {', '.join(_LOG_LEVELS)}",
            field="CAPSTAN_LOG_LEVEL",
        )
    settings = _LOG4J[read_format() or LogFormat.PLAIN].as_uri()
    return f"-Dlog4j2.configurationFile={settings} -Dcapstan.log.level={level}"
