"""The deployment of `docker/` without a Docker engine: containers become local processes.

Each service of the Compose file that runs the project's image is started by the image's entry
point, with the environment from the image and the file, and the secrets as files; the image's
health check watches it. Names of containers, ports and folders are replaced by those of this
machine. PostgreSQL is an existing server.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from capstan.airflow.local import processes
from capstan.spark.project_home import project_home
from capstan.spark.setup.java import find_java, spark_home
from capstan.spark.setup.local_submit import pyspark_home
from capstan.storage.lake import Lake
from tests.support import compose
from tests.support.airflow_api import Rest
from tests.support.driver_under_test import PATIENCE
from tests.support.small_spark import SUBMITTED

SERVICES = (
    "init", "spark-master", "spark-worker-1", "spark-worker-2", "api-server", "scheduler",
    "dag-processor", "triggerer",
)  # fmt: skip
"""Start order, in which no service waits for a later one."""

_MARK = "CAPSTAN_DEPLOYED"
_LOOPBACK = "127.0.0.1"
_LEAN = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# The `.env` of a small machine.
_SMALL = {
    "CAPSTAN_DRIVER_MEMORY": "1g",
    "SPARK_EXECUTOR_MEMORY": "512m",
    "SPARK_WORKER_CORES": "1",
    "SPARK_WORKER_MEMORY": "600m",
}
_ENV = re.compile(r"(\w+)=(\S+)")


@dataclass(frozen=True, slots=True)
class Deployment:
    """The services of the Compose file as local processes.

    Attributes:
        folder: Folder of everything that they write.
        variables: The variables of `.env`.
        rest: Airflow's API, with the password of the secret.
        lake: The volume of the lake.
        ports: Ports of the services: `api`, `scheduler`, and for each Spark daemon its own port and
            that of its page.
        place: PostgreSQL, as `host:port/database`.
        mark: Marks its processes.
    """

    folder: Path
    variables: Mapping[str, str]
    rest: Rest
    lake: Lake
    ports: Mapping[str, int]
    place: str
    mark: str
    _begun: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def logs(self) -> Path:
        """Folder of the output of each service."""
        return self.folder / "printed"

    def log(self, service: str) -> str:
        """The output of a service."""
        return (self.logs / f"{service}.log").read_text(encoding="utf-8", errors="replace")

    def begin(self, service: str) -> subprocess.Popen[bytes]:
        """Start a service by the image's entry point."""
        with (self.logs / f"{service}.log").open("wb") as log:
            process = subprocess.Popen(
                [str(compose.DOCKER / "entry")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env=self.environment(service),
                start_new_session=True,
            )
        self._begun[service] = process
        return process

    def run(self, *command: str) -> str:
        """Run a command as `docker compose run --rm cli` does; returns its output.

        Raises:
            AssertionError: It failed.
        """
        done = subprocess.run(
            [str(compose.DOCKER / "entry"), *command],
            env=self.environment("cli"),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def wait(self, service: str) -> None:
        """Wait until a service has succeeded, or is healthy if it does not end.

        Raises:
            AssertionError: It failed, or is not healthy in time.
        """
        process, end = self._begun[service], time.monotonic() + PATIENCE
        ends = service == "init"
        while process.poll() is None and (ends or not self._is_healthy(service)):
            assert time.monotonic() < end, f"{service} is not well:\n{self.log(service)[-4000:]}"
            time.sleep(0.5)
        code = process.poll()
        assert code == (0 if ends else None), f"{service}: {code}\n{self.log(service)[-4000:]}"

    def stop(self) -> None:
        """Stop all services, as Compose does, in reverse order, and wait until they have ended.

        Raises:
            AssertionError: One has not ended within its grace period.
        """
        for service, process in reversed(self._begun.items()):
            process.send_signal(signal.SIGTERM)
            grace = float(str(_service(self.variables, service)["stop_grace_period"])[:-1])
            try:
                process.wait(grace)
            except subprocess.TimeoutExpired:
                raise AssertionError(
                    f"{service} still runs after {grace:.0f} s:\n{self.log(service)[-4000:]}"
                ) from None

    def environment(self, service: str) -> dict[str, str]:
        """The environment of a service, with the values of this machine."""
        declared = _service(self.variables, service)["environment"]
        assert isinstance(declared, dict)
        java = spark_home(find_java())
        localized = {key: self._localized(str(value), service) for key, value in declared.items()}
        image = {key: self._localized(value, service) for key, value in _image().items()}
        return {
            **image,
            **localized,
            **SUBMITTED,
            "PATH": os.pathsep.join(
                [str(Path(sys.executable).absolute().parent), os.environ["PATH"]]
            ),
            "HOME": str(self.folder),
            "JAVA_HOME": str(java),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_HOME": str(pyspark_home()),
            "PYTHONPATH": str(project_home() / "lib"),
            "TMPDIR": str(self._private_folder(service, "tmp")),
            "no_proxy": f"{_LOOPBACK},localhost",
            _MARK: self.mark,
            "CAPSTAN_SECRETS": str(self.folder / "secrets"),
            "CAPSTAN_DATABASE": self.place,
            **self._ports(service),
        }

    def _ports(self, service: str) -> dict[str, str]:
        """The variables of a service that set its ports on loopback."""
        port = {name: str(number) for name, number in self.ports.items()}
        page = {"api-server": "api", "scheduler": "scheduler"}.get(service, f"{service} page")
        return {
            "AIRFLOW__API__HOST": _LOOPBACK,
            "AIRFLOW__API__PORT": port["api"],
            "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_SERVER_PORT": port["scheduler"],
            "CAPSTAN_HEALTH_PORT": port.get(page, ""),
            "SPARK_DAEMON_JAVA_OPTS": _LEAN,
            "SPARK_LOCAL_IP": _LOOPBACK,
            "SPARK_MASTER_PORT": port["spark-master"],
            "SPARK_MASTER_WEBUI_PORT": port["spark-master page"],
            "SPARK_WORKER_DIR": str(self._private_folder(service, "spark/work")),
            "SPARK_WORKER_PORT": port.get(service, ""),
            "SPARK_WORKER_WEBUI_PORT": port.get(f"{service} page", ""),
        }

    def _localized(self, text: str, service: str) -> str:
        """A value with folders of the image, containers and ports replaced by local ones."""
        folders = {
            "/opt/capstan": project_home(),
            "/run/secrets": self.folder / "secrets",
            "/airflow": self.folder / "airflow",
            "/lake": self.folder / "lake",
            "/spark": self._private_folder(service, "spark"),
        }
        for name, place in folders.items():
            text = re.sub(rf"(?<![\w/]){name}(?=/|$)", str(place), text)
        text = text.replace("//api-server:8080", f"//{_LOOPBACK}:{self.ports['api']}")
        text = text.replace("//spark-master", f"//{_LOOPBACK}")
        return re.sub(r"\b7077\b", str(self.ports["spark-master"]), text)

    def _private_folder(self, service: str, name: str) -> Path:
        """A folder private to a container."""
        place = self.folder / "own" / service / name
        place.mkdir(parents=True, exist_ok=True)
        return place

    def _is_healthy(self, service: str) -> bool:
        done = subprocess.run(
            [str(compose.DOCKER / "health")],
            env=self.environment(service),
            cwd=self.folder,
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        )
        return done.returncode == 0


@contextmanager
def deployed(folder: Path, database: str) -> Iterator[Deployment]:
    """Begin the services of the Compose file, and wait until all are well; all end with the block.

    Args:
        folder: What they write goes there; the lake is its `lake`.
        database: URL of an empty database of the role `airflow`.
    """
    url = urlsplit(database)
    folder.mkdir(parents=True, exist_ok=True)
    ports = _free_ports("api", "scheduler", *(f"{s}{p}" for s in SERVICES for p in ("", " page")))
    variables = {
        **compose.made_variables(folder),
        **_SMALL,
        "CAPSTAN_DATABASE_PASSWORD": unquote(url.password or ""),
        "CAPSTAN_PORT": str(ports["api"]),
    }
    made = Deployment(
        folder,
        variables,
        Rest(f"http://{_LOOPBACK}:{ports['api']}", variables["CAPSTAN_ADMIN_PASSWORD"]),
        Lake.at(folder / "lake"),
        ports,
        f"{url.hostname}:{url.port}{url.path}",
        secrets.token_hex(16),
    )
    for name in ("airflow/logs", "airflow/work", "lake", "printed"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    _write_secrets(folder / "secrets", variables)
    try:
        _start_all(made)
        yield made
    finally:
        mark = f"{_MARK}={made.mark}"
        processes.end(
            lambda: [
                item
                for leader in processes.sessions_with(mark, made.logs)
                for item in processes.session_of(leader)
            ]
        )
        for process in made._begun.values():
            process.wait(PATIENCE)


def _start_all(made: Deployment) -> None:
    """Start each service once the services it waits for are healthy."""
    well: set[str] = {"postgres"}
    for service in SERVICES:
        needs = _service(made.variables, service).get("depends_on", {})
        assert isinstance(needs, dict)
        for other in needs:
            if other not in well:
                made.wait(other)
                well.add(other)
        made.begin(service)
    for service in SERVICES:
        if service not in well:
            made.wait(service)


def _service(variables: Mapping[str, str], name: str) -> dict[str, object]:
    service = compose.document(variables)["services"][name]
    return dict(service)


def _image() -> dict[str, str]:
    """The environment that the image gives its containers."""
    text = (compose.DOCKER / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    entries = [line[4:] for line in text.splitlines() if line.startswith("ENV ")]
    return {key: value for line in entries for key, value in _ENV.findall(line)}


def _write_secrets(folder: Path, variables: Mapping[str, str]) -> None:
    """Write the files that Compose mounts as secrets; every service sees all of them."""
    folder.mkdir(mode=0o700)
    for name, secret in compose.document(variables)["secrets"].items():
        (folder / name).write_text(variables[str(secret["environment"])], encoding="utf-8")


def _free_ports(*names: str) -> dict[str, int]:
    """A port of loopback for each name, all of them free at this moment."""
    with ExitStack() as held:
        taken = [held.enter_context(socket.socket()) for _ in names]
        for server in taken:
            server.bind((_LOOPBACK, 0))
        ports = (int(server.getsockname()[1]) for server in taken)
        return dict(zip(names, ports, strict=True))
