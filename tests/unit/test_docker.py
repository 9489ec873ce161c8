"""The image and the deployment of `docker/`, as far as they can be judged without an engine."""

from __future__ import annotations

import fnmatch
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml

from tests.support.compose import DOCKER, FILE, MissingError, document, find_compose, made_variables

ROOT = Path(__file__).parents[2]
DOCKERFILE = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
OWN = "docker/Dockerfile"
# Of the image that the first stage begins with.
BASE_PATH = "/usr/local/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Where the commands of RUN lie: in Debian bookworm, in that image, and in what is installed there.
COMMANDS = {
    "/usr/bin": "apt-get chmod dirname install ln readlink rm",
    "/usr/sbin": "groupadd useradd",
    "/usr/local/bin": "python",
}
SHELLS_OWN = {"command", "fi", "[", ""}


@pytest.fixture
def variables(tmp_path):
    return made_variables(tmp_path)


@pytest.fixture
def compose(variables):
    return document(variables)


def instructions():
    """The instructions of the Dockerfile, each with its words in one line."""
    lines = [line for line in DOCKERFILE.splitlines() if not line.lstrip().startswith("#")]
    text = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [tuple(line.split(None, 1)) for line in text.splitlines() if line.strip()]


def last_stage():
    actual = instructions()
    begin = max(i for i, (word, _) in enumerate(actual) if word == "FROM")
    return actual[begin:]


def runs():
    """The RUN instructions, each with the PATH that it is carried out with."""
    stages = {}
    path = ""
    stage = ""
    for word, rest in instructions():
        if word == "FROM":
            image, _, stage = rest.split()
            path = stages.get(image, BASE_PATH)
        elif word == "ENV" and (actual := re.search(r"(?:^|\s)PATH=(\S+)", rest)):
            path = re.sub(r"\$(PATH\b|\{PATH\})", path, actual.group(1))
        elif word == "RUN":
            yield rest, path
        stages[stage] = path


def commands(shell):
    """The commands that a line of shell begins, without those of the shell itself."""
    parts = re.split(r"&&|\|\||[;|]|\$\(|\bthen\b", shell)
    words = [re.sub(r"^\s*(if\s+|\w+=\S*\s+)*", "", part).split() for part in parts]
    return [word[0] for word in words if word and word[0] not in SHELLS_OWN]


def own(compose):
    """The services that run the project's image."""
    return {n: s for n, s in compose["services"].items() if "build" in s}


def test_a_linter_finds_nothing_in_the_dockerfile():
    linter = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if linter is None:
        message = "there is no hadolint: `make setup` installs it"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    done = subprocess.run([linter, ROOT / OWN], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_is_not_run_as_root_and_says_how_it_is():
    stage = dict(last_stage())
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", stage["USER"])
    assert "docker/health" in stage["HEALTHCHECK"]
    assert json.loads(stage["ENTRYPOINT"])[-1] == "/opt/capstan/docker/entry"


def test_the_image_has_what_is_locked_and_this_python():
    [*_, version] = [rest for word, rest in instructions() if word == "ARG" and "PYTHON=" in rest]
    series = re.match(r"PYTHON=(\d+\.\d+)-slim", version)
    assert series
    assert f">={series.group(1)}," in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert set(re.findall(r"lib/python(\d+\.\d+)/", DOCKERFILE)) == {series.group(1)}
    installs = re.findall(r"pip install ([^\n&]+)", DOCKERFILE)
    assert len(installs) == 2
    assert "--require-hashes" in installs[0]
    assert "requirements.lock" in installs[0]
    assert "--no-deps" in installs[1]


def test_what_is_copied_is_there_and_is_let_in():
    rules = (DOCKER / "Dockerfile.dockerignore").read_text(encoding="utf-8").split("\n")
    let_in = [rule[1:] for rule in rules if rule.startswith("!")]
    kept_out = [r for r in rules if r and not r.startswith(("!", "#"))]
    copied = [rest.split()[:-1] for word, rest in instructions() if word == "COPY"]
    for place in (item for words in copied for item in words if not item.startswith(("--", "/"))):
        assert (ROOT / place).exists(), place
        assert place.split("/")[0] in let_in, place
    for secret in ("docker/.env", ".git", "lake", ".cache", ".venv"):
        assert any(fnmatch.fnmatch(secret, rule) for rule in kept_out), secret
        assert secret not in let_in


def test_the_jars_are_fetched_with_what_is_copied_before(tmp_path):
    before = DOCKERFILE.replace("\\\n", " ").split("RUN PYTHONPATH=lib")[0]
    for line in re.findall(r"^COPY (lib/.*)$", before, flags=re.MULTILINE):
        *files, place = line.split()
        for file in files:
            if (ROOT / file).is_dir():
                shutil.copytree(ROOT / file, tmp_path / place)
            else:
                (tmp_path / place).mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / file, tmp_path / place)
    program = (
        "import sys; sys.path.insert(0, 'lib'); "
        "from capstan.spark.setup import jars; print(jars.__file__)"
    )
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert str(tmp_path) in ended.stdout or ended.stdout.startswith("lib/")


def test_commands_of_the_image_are_found():
    where = {name: folder for folder, names in COMMANDS.items() for name in names.split()}
    seen = set()
    for shell, path in runs():
        for command in commands(shell):
            seen.add(command)
            if "/" not in command:
                assert command in where, f"{command}: say in COMMANDS where it lies"
                assert where[command] in path.split(":"), f"{command} in: {shell}"
    assert seen >= set(where)


def test_what_is_copied_can_be_read_by_who_is_not_root():
    """Files come with the modes that they have on the machine that builds, whatever its umask."""
    actual = instructions()
    opened = next(rest for word, rest in actual if word == "RUN" and "chmod" in rest).split()
    after = actual[actual.index(("RUN", " ".join(opened))) :]
    assert opened[:3] == ["chmod", "--recursive", "a+rX"]
    assert [rest for word, rest in after if word == "COPY"] == [
        "--from=build /opt/capstan /opt/capstan"
    ]
    copied = [rest.split()[:-1] for word, rest in actual if word == "COPY"]
    folders = {place for words in copied for place in words if (ROOT / place).is_dir()}
    assert {place.split("/")[0] for place in folders} == set(opened[3:])


def test_nothing_starts_without_secrets_of_ones_own(variables):
    for name in variables:
        with pytest.raises(MissingError, match=name):
            document({**variables, name: ""})
    sources = {secret["environment"] for secret in document(variables)["secrets"].values()}
    assert sources == set(variables)


def test_secrets_are_files_to_those_that_need_them(compose, variables):
    known = set(compose["secrets"])
    used = set()
    for name, service in compose["services"].items():
        used |= set(service.get("secrets", []))
        assert set(service.get("secrets", [])) <= known, name
        for key, value in service.get("environment", {}).items():
            assert str(value) not in variables.values(), f"{name}: {key}"
            if re.search("PASSWORD|SECRET|FERNET|SQL_ALCHEMY", key):
                assert key.endswith(("_FILE", "_CMD", "_PASSWORDS_FILE")), f"{name}: {key}"
    assert used == known


def test_nothing_listens_beyond_this_machine(compose):
    ports = [p for service in compose["services"].values() for p in service.get("ports", [])]
    assert ports
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []
    assert all("network_mode" not in service for service in compose["services"].values())


def test_each_service_is_looked_after(compose):
    for name, service in compose["services"].items():
        health = service.get("healthcheck", {})
        if health.get("disable"):
            assert service["restart"] == "no", name
            continue
        assert service["restart"] == "unless-stopped", name
        # Those of the project's image have the image's own.
        assert "build" in service or health["test"][0] == "CMD", name


def test_who_waits_for_another_can(compose):
    services = compose["services"]
    for name, service in services.items():
        for other, how in service.get("depends_on", {}).items():
            assert other in services, f"{name} waits for {other}"
            ends = services[other]["restart"] == "no"
            expected = "service_completed_successfully" if ends else "service_healthy"
            assert how["condition"] == expected, f"{name} waits for {other}"
            # What only a profile brings is not there for the others.
            optional = how.get("required") is False
            own = set(service.get("profiles", []))
            assert optional or set(services[other].get("profiles", [])) <= own


def test_volumes_and_pictures_are_named(compose):
    for name, service in compose["services"].items():
        assert re.fullmatch(r"[\w./-]+:[\w.-]+", service["image"]), name
        assert not service["image"].endswith(":latest"), name
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in compose["volumes"] or (DOCKER / source).is_dir(), f"{name}: {volume}"


def test_what_one_role_writes_for_another_is_in_a_volume(compose):
    """The form is parsed elsewhere than the tasks run that know what it offers."""
    made = re.search(r"install --directory .*--owner=capstan.*", dict(last_stage())["RUN"]).group()
    settings = dict(re.findall(r"(\w+)=(\S+)", dict(last_stage())["ENV"]))
    roles = ("init", "api-server", "scheduler", "dag-processor", "triggerer")
    for place in ("/airflow/logs", settings["CAPSTAN_LAKE"], settings["CAPSTAN_WORK"]):
        # A new volume has the owner of what the image has in its place.
        assert place in made.split(), place
        [volume] = {
            item.split(":")[0]
            for role in roles
            for item in compose["services"][role]["volumes"]
            if item.split(":")[1] == place
        }
        for role in roles:
            assert f"{volume}:{place}" in compose["services"][role]["volumes"], (role, place)


def test_roles_are_those_of_the_entry_point(compose):
    entry = (DOCKER / "entry").read_text(encoding="utf-8")
    roles = set(re.findall(r"^  ([a-z-]+)\)", entry, flags=re.MULTILINE))
    printed = {s["environment"].get("CAPSTAN_ROLE") for s in own(compose).values()} - {None}
    assert printed == roles
    for name, service in own(compose).items():
        assert service["environment"].get("CAPSTAN_ROLE") or service["command"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name


def test_settings_are_those_that_airflow_knows(compose):
    spec = importlib.util.find_spec("airflow")
    assert spec is not None
    assert spec.origin is not None
    template = Path(spec.origin).parent / "config_templates" / "config.yml"
    known = yaml.safe_load(template.read_text(encoding="utf-8"))
    names = {key for s in own(compose).values() for key in s["environment"] if "__" in key}
    assert len(names) > 15
    for name in names:
        _, section, option = name.split("__")
        command = option.endswith("_CMD")
        about = known[section.lower()]["options"][option.removesuffix("_CMD").lower()]
        assert not command or about["sensitive"], name


def test_the_connection_leads_to_the_master(compose):
    settings = compose["services"]["scheduler"]["environment"]
    spark = json.loads(settings["AIRFLOW_CONN_SPARK_DEFAULT"])
    url = f"{spark['host']}:{spark['port']}"
    assert url == compose["services"]["spark-worker-1"]["environment"]["CAPSTAN_SPARK"]
    assert url == compose["services"]["cli"]["environment"]["CAPSTAN_MASTER"]
    assert "spark-master" in compose["services"]


def test_compose_itself_takes_it(variables, compose):
    """And makes of it what the other tests take for its meaning."""
    begun = find_compose()
    if begun is None:
        message = "there is no Compose: `make compose` fetches it"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    command = [*begun, "--file", FILE, "--profile", "*", "config", "--format=json"]
    clean = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
    done = subprocess.run(
        command, env={**clean, **variables}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    actual = json.loads(done.stdout)
    assert set(actual["services"]) == set(compose["services"])
    for name, service in actual["services"].items():
        meant = compose["services"][name]
        assert service["environment"] == {
            key: str(value) for key, value in meant["environment"].items()
        }, name
        assert set(service.get("depends_on", {})) == set(meant.get("depends_on", {})), name
        assert {item["source"] for item in service.get("secrets", [])} == set(
            meant.get("secrets", [])
        ), name
    refused = subprocess.run(command, env=clean, capture_output=True, text=True, check=False)
    assert refused.returncode != 0
    assert "run docker/make-env first" in refused.stderr


def test_secrets_are_made_once_and_for_their_owner_alone(tmp_path):
    first = made_variables(tmp_path)
    assert (tmp_path / ".env").stat().st_mode & 0o777 == 0o600
    assert made_variables(tmp_path) == first
    other = tmp_path / "other"
    other.mkdir()
    assert not set(made_variables(other).values()) & set(first.values())
    assert min(map(len, first.values())) >= 24
    # Compose would read more into a dollar, a quote or a space.
    assert all(re.fullmatch(r"[\w=-]+", value) for value in first.values())
    assert "/docker/.env" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()


def test_with_s3_the_lake_is_in_the_store_of_its_profile(tmp_path, compose):
    path = tmp_path / "s3.env"
    subprocess.run([DOCKER / "make-env", "--s3", path], check=True, capture_output=True)
    lines = path.read_text(encoding="utf-8").splitlines()
    with_s3 = document(dict(line.split("=", 1) for line in lines))
    assert compose["services"]["scheduler"]["environment"]["CAPSTAN_LAKE"] == "/lake"
    [profile] = [line.split("=")[1] for line in lines if line.startswith("COMPOSE_PROFILES=")]
    [store] = [n for n, s in with_s3["services"].items() if profile in s.get("profiles", [])]
    for name, service in own(with_s3).items():
        assert service["environment"]["CAPSTAN_LAKE"] == "s3a://capstan/lake", name
        assert service["environment"]["CAPSTAN_S3_ENDPOINT"] == f"http://{store}:9000", name
        # The master reads nothing there.
        assert "s3_password" in service["secrets"] or name == "spark-master", name
        assert service["build"]["args"]["CONNECTORS"].split() == ["kafka", "s3"]


def run(program, *arguments, **environment):
    return subprocess.run(
        [DOCKER / program, *arguments],
        env={"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def secrets(tmp_path):
    folder = tmp_path / "secrets"
    folder.mkdir()
    for name in ("database_password", "spark_secret", "s3_password"):
        (folder / name).write_text(f"a {name}: p@ss/w%rd\n", encoding="utf-8")
    return folder


def test_the_url_of_the_database_takes_any_password(secrets):
    done = run("database-url", CAPSTAN_SECRETS=str(secrets))
    # Airflow takes it as it is printed, the end of a line and all.
    url = urlsplit(done.stdout)
    assert done.stdout == done.stdout.strip()
    assert (url.scheme, url.hostname, url.port, url.path) == (
        "postgresql+psycopg2", "postgres", 5432, "/airflow",
    )  # fmt: skip
    assert unquote(url.password) == "a database_password: p@ss/w%rd"


def test_spark_is_told_to_ask_for_the_secret(secrets, tmp_path):
    actual = dict(
        line.split(" ", 1)
        for line in run("spark-defaults", CAPSTAN_SECRETS=str(secrets)).stdout.splitlines()
    )
    assert actual["spark.authenticate"] == "true"
    assert actual["spark.master.rest.enabled"] == "false"
    assert actual["spark.authenticate.secret"] == "a spark_secret: p@ss/w%rd"
    assert "spark.hadoop.fs.s3a.endpoint" not in actual
    with_s3 = run(
        "spark-defaults", CAPSTAN_SECRETS=str(secrets), CAPSTAN_S3_ENDPOINT="http://minio:9000"
    ).stdout
    assert "spark.hadoop.fs.s3a.secret.key a s3_password: p@ss/w%rd\n" in with_s3
    assert "authenticate" not in run("spark-defaults", CAPSTAN_SECRETS=str(tmp_path)).stdout


def test_the_entry_point_carries_out_a_command_or_refuses(secrets, tmp_path):
    where = {
        "SPARK_CONF_DIR": str(tmp_path / "conf"),
        "SPARK_LOCAL_DIRS": str(tmp_path / "local"),
        "CAPSTAN_SECRETS": str(secrets),
    }
    done = run("entry", "echo", "said", **where)
    assert (done.returncode, done.stdout) == (0, "said\n")
    done = run("entry", "printenv", "AWS_SECRET_ACCESS_KEY", **where)
    assert (done.returncode, done.stdout) == (1, "")
    done = run("entry", "env", **where, CAPSTAN_S3_ENDPOINT="http://minio:9000")
    assert {line for line in done.stdout.splitlines() if line.startswith("AWS_")} == {
        "AWS_ACCESS_KEY_ID=capstan",
        "AWS_SECRET_ACCESS_KEY=a s3_password: p@ss/w%rd",
        "AWS_ENDPOINT_URL=http://minio:9000",
        "AWS_REGION=us-east-1",
        "AWS_ALLOW_HTTP=true",
    }
    settings = tmp_path / "conf" / "spark-defaults.conf"
    assert settings.stat().st_mode & 0o777 == 0o600
    assert "spark.authenticate true" in settings.read_text(encoding="utf-8")
    refused = run("entry", CAPSTAN_ROLE="king", **where)
    assert (refused.returncode, refused.stderr) == (
        64, "entry: CAPSTAN_ROLE is 'king', and there is no command\n",
    )  # fmt: skip


@pytest.fixture
def answering():
    """Serves whatever it is told to on a port of loopback: `(port, told)`."""
    reported = {}

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            actual = reported.get(self.path)
            self.send_response(404 if actual is None else 200)
            self.end_headers()
            self.wfile.write((actual or "").encode())

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield str(server.server_port), reported
        server.shutdown()


@pytest.mark.parametrize(
    ("role", "path", "well", "ill"),
    [
        ("master", "/json/", '{"status": "ALIVE"}', '{"status": "STANDBY"}'),
        ("worker", "/json/", '{"masterurl": "spark://m:7077"}', '{"masterurl": ""}'),
        ("scheduler", "/health", "", None),
        (
            "api-server",
            "/api/v2/monitor/health",
            '{"metadatabase": {"status": "healthy"}}',
            '{"metadatabase": {"status": "unhealthy"}}',
        ),
    ],
)
def test_a_role_is_healthy_when_it_says_so(answering, role, path, well, ill):
    port, reported = answering
    codes = []
    for reported[path] in (well, ill, "[]", None):
        if role == "scheduler" and reported[path] == "[]":
            continue
        codes.append(run("health", CAPSTAN_ROLE=role, CAPSTAN_HEALTH_PORT=port).returncode)
    assert codes == [0, *(1 for _ in codes[1:])]


@pytest.mark.parametrize("role", ["dag-processor", "triggerer"])
def test_a_role_without_a_page_is_healthy_when_airflow_says_so(role, tmp_path):
    jobs = (Path(importlib.util.find_spec("airflow").origin).parent / "jobs").glob("*.py")
    known = set(re.findall(r'job_type = "(\w+)"', "".join(item.read_text() for item in jobs)))
    program = tmp_path / "airflow"
    codes = []
    for code in (0, 1):
        program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\nexit {code}\n')
        program.chmod(0o755)
        path = f"{tmp_path}:{os.environ['PATH']}"
        codes.append(run("health", CAPSTAN_ROLE=role, PATH=path).returncode)
    *requested, job = (tmp_path / "asked").read_text(encoding="utf-8").split()
    assert (codes, requested) == ([0, 1], ["jobs", "check", "--local", "--job-type"])
    assert job in known


def test_as_many_jobs_as_may_run_have_room(compose):
    """One that finds no core, or no memory, on any worker waits without a word."""
    services = compose["services"]
    settings = services["scheduler"]["environment"]
    workers = [item["environment"] for name, item in services.items() if "spark-worker" in name]
    jobs, cores = (int(settings[name]) for name in ("CAPSTAN_APPS", "SPARK_CORES_MAX"))
    item = int(settings["SPARK_EXECUTOR_CORES"])
    gigabytes = int(settings["SPARK_EXECUTOR_MEMORY"].removesuffix("g"))
    executors = sum(
        min(
            int(worker["SPARK_WORKER_CORES"]) // item,
            int(worker["SPARK_WORKER_MEMORY"].removesuffix("g")) // gigabytes,
        )
        for worker in workers
    )
    assert len(workers) == 2
    assert jobs * cores // item <= executors


def test_one_command_is_healthy_as_long_as_it_runs():
    assert run("health").returncode == 0
