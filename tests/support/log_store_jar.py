"""Builds the jar of the log store for S3, byte for byte the same on every machine.

`make log-store` runs it. The compiler is Eclipse's, pinned by hash: the bytes that `javac` writes
depend on the JDK that happens to be installed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from capstan.spark.setup import jars
from capstan.spark.setup.java import find_java
from capstan.spark.setup.local_submit import pyspark_home

COMPILER = jars.Jars(
    "ecj", "", ("org.eclipse.jdt:ecj:3.38.0",), (), Path(__file__).with_name("ecj.sha256")
)
SOURCES = jars.LOG_STORE_JAR.parent
# The earliest time that a zip can hold.
_EPOCH = (1980, 1, 1, 0, 0, 0)


def build(jar: Path) -> None:
    """Compile the sources into `jar`.

    Raises:
        RuntimeError: When they do not compile; the text is the compiler's.
    """
    (compiler,) = jars.fetch(COMPILER)
    spark = (pyspark_home() / "jars").glob("*.jar")
    used = [*jars.delta_jars(), *spark, *jars.fetch(jars.S3)]
    with tempfile.TemporaryDirectory(prefix="capstan-") as folder:
        done = subprocess.run(
            [
                *(str(find_java().home / "bin" / "java"), "-jar", str(compiler)),
                *("-17", "-proc:none", "-g:lines,source", "-encoding", "UTF-8", "-d", folder),
                *("-classpath", ":".join(map(str, used))),
                *map(str, sorted(SOURCES.glob("*.java"))),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(done.stderr + done.stdout)
        with zipfile.ZipFile(jar, "w") as archive:
            for path in sorted(Path(folder).rglob("*.class")):
                entry = zipfile.ZipInfo(path.relative_to(folder).as_posix(), _EPOCH)
                # Stored, not deflated: libraries for compression differ in their output.
                archive.writestr(entry, path.read_bytes(), zipfile.ZIP_STORED)


def main() -> int:
    """Build the jar of the package, and record its hash; the exit code of the process."""
    try:
        build(jars.LOG_STORE_JAR)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    name = f"{SOURCES.name}/{jars.LOG_STORE_JAR.name}"
    others = [
        line for line in jars.HASHES.read_text("utf-8").splitlines() if not line.endswith(name)
    ]
    lines = sorted(
        [*others, f"{jars.sha256(jars.LOG_STORE_JAR)}  {name}"], key=lambda line: line[66:]
    )
    jars.HASHES.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    print(f"log-store: {jars.LOG_STORE_JAR.name}, {jars.LOG_STORE_JAR.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
