"""How a Spark driver's JVM is started: options, memory, and what a driver of one machine needs.

Whoever starts a driver asks here: a session of this process, or a submission. No Spark is imported.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from capstan.errors import InvalidRequestError
from capstan.structured_logging import LogFormat, read_format

OPTIONS = "spark.driver.extraJavaOptions"
"""The setting that carries JVM options of the driver."""

SHORT = "-XX:TieredStopAtLevel=1"
"""For jobs of a minute or two: they end before the second compiler's better code has paid for
itself, and it takes a third of their processor time. Not for large ranges."""

_LOG_LEVELS = ("OFF", "FATAL", "ERROR", "WARN", "INFO", "DEBUG", "TRACE", "ALL")
_MEMORY = re.compile(r"[1-9][0-9]*[kmgt]b?", re.IGNORECASE)
_LOCAL = re.compile(r"local(?:\[(\*|[0-9]+)(?:,[0-9]+)?\])?")
_LOG4J = {
    LogFormat.PLAIN: Path(__file__).parent / "log4j2.properties",
    LogFormat.JSON: Path(__file__).parent / "log4j2-json.properties",
}

# Every query is new code, most of it gone before the second compiler is done with it: with the
# usual thresholds that one takes half of a small batch's CPU. Loops over many rows still reach it.
_COMPILER = " ".join(
    f"-XX:Tier4{name}={count}"
    for name, count in (
        ("InvocationThreshold", 50_000),
        ("MinInvocationThreshold", 6_000),
        ("CompileThreshold", 100_000),
    )
)
# Of so much code the JVM's own bound (48 MB under the first compiler alone) is soon full, and then
# a third of the processor goes into sweeping it.
_CODE_CACHE = "-XX:ReservedCodeCacheSize=512m"

# The usual collector works beside the program all the time: on few cores that takes a fifth of the
# CPU of a small batch, for pauses that nobody waits for here.
_COLLECTOR = "-XX:+UseParallelGC"
# Hadoop has no native library here, and starts a program for each mode that it sets and each link
# that it looks at: a hundred in a small batch.
_SPAWN = "-Djdk.lang.Process.launchMechanism=VFORK"
_ANY_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b")


def driver_options(*more: str, level: str = "ERROR") -> str:
    """The JVM options of a driver, with `more` after them.

    Args:
        more: Further options; empty ones are left out. One that names a garbage collector wins.
        level: What is logged where `CAPSTAN_LOG_LEVEL` does not say.

    Raises:
        InvalidRequestError: `CAP-SETTING` when `CAPSTAN_LOG_LEVEL` is not a level, or `CAPSTAN_LOG`
            is not a form.
    """
    collector = "" if any(map(_ANY_COLLECTOR.search, more)) else _COLLECTOR
    options = [_quiet_logs(level), _COMPILER, _CODE_CACHE, collector, _SPAWN, *more]
    return " ".join(option for option in options if option)


def driver_memory() -> str:
    """The driver's memory: `CAPSTAN_DRIVER_MEMORY`, or half of the machine's, 1 to 4 GiB.

    Raises:
        InvalidRequestError: `CAP-SETTING` when `CAPSTAN_DRIVER_MEMORY` is not a size.
    """
    memory = os.environ.get("CAPSTAN_DRIVER_MEMORY") or _default_memory()
    if not _MEMORY.fullmatch(memory):
        raise InvalidRequestError(
            "CAP-SETTING",
            f"CAPSTAN_DRIVER_MEMORY is {memory!r}, not a size of memory",
            "give a number and a unit, such as 4g or 800m",
            field="CAPSTAN_DRIVER_MEMORY",
        )
    return memory


def is_local(master: str) -> bool:
    """Whether `master` runs everything in the driver's own JVM."""
    return _LOCAL.fullmatch(master) is not None


def local_settings(master: str) -> dict[str, str]:
    """Settings of a driver whose `master` is local: nothing of it listens beyond this machine."""
    match = _LOCAL.fullmatch(master)
    threads = match.group(1) if match else None
    cores = os.cpu_count() or 1 if threads == "*" else int(threads or 1)
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # A start only: adaptive execution joins partitions that turn out small.
        "spark.sql.shuffle.partitions": str(max(2, 2 * cores)),
    }


def _default_memory() -> str:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        total = 4 << 30
    return f"{min(4096, max(1024, total // 2 // (1 << 20)))}m"


def _quiet_logs(usual: str) -> str:
    """The options that send logs to standard error, and little unless asked for more."""
    level = os.environ.get("CAPSTAN_LOG_LEVEL", usual).upper()
    if level not in _LOG_LEVELS:
        raise InvalidRequestError(
            "CAP-SETTING",
            f"CAPSTAN_LOG_LEVEL is {level!r}, not a level",
            f"give one of {', '.join(_LOG_LEVELS)}",
            field="CAPSTAN_LOG_LEVEL",
        )
    settings = _LOG4J[read_format() or LogFormat.PLAIN].as_uri()
    return f"-Dlog4j2.configurationFile={settings} -Dcapstan.log.level={level}"
