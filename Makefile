# Requires Python 3.11 and make; everything else goes into .venv and .cache.

PYTHON ?= python3.11
BIN    := .venv/bin
STAMPS := .venv/stamps
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet
# uv takes a fifth of pip's time, and keeps a cache. It does not read pip's settings, so those that
# say where packages are come with the command.
pip_setting = $(or $(PIP_$1),$(shell $(PIP) config get global.$2 2>/dev/null))
UV_INSTALL  = $(BIN)/uv pip install --quiet --require-hashes \
	  $(addprefix --cert=,$(call pip_setting,CERT,cert)) \
	  $(addprefix --default-index=,$(call pip_setting,INDEX_URL,index-url)) \
	  $(addprefix --find-links=,$(call pip_setting,FIND_LINKS,find-links))
# Arguments for the program that a target runs: make bench ARGS=--rows=1000000
ARGS   ?=
# Test processes; 0 runs the tests in pytest's own process. Each process waits two fifths of its
# time, so four keep two cores busy. The Spark tests form four groups, each with one session.
JOBS   ?= 4
# Seed of the examples and the order of tests. It is fixed, so that a failure is due to the change;
# SEED=random draws another seed and prints it.
SEED   ?= 2013
ifeq ($(SEED),random)
override SEED := $(shell od -An -N2 -tu2 /dev/urandom | tr -d ' ')
endif
CODE   := lib tests dags spark_apps examples docs/site
# If it were set, every process would compile all its imports: tests start some hundred processes.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help setup kafka s3 avro demo airflow test test-all nightly chaos soak check static fmt fmt-check lint types imports site pictures log-store bench lock clean

## Show this list.
help:
	@awk '/^## / { text = substr($$0, 4); next } \
	  /^[a-z][a-z0-9-]*:/ && text { split($$1, name, ":"); printf "  make %-10s %s\n", name[1], text } \
	  { text = "" }' $(firstword $(MAKEFILE_LIST))

# Prerequisites of everything else. The class archive covers all jars, so connectors come before it.
.PHONY: base
base: $(STAMPS)/project
	@$(BIN)/python -m capstan.spark.setup.java
	@$(BIN)/python -m capstan.spark.setup.jars

## Set up the environment: .venv, packages, Java, Delta's jars, the class archive.
setup: base classes

## Fetch Spark's Kafka connector.
kafka: base
	@$(BIN)/python -m capstan.spark.setup.jars kafka

## Fetch Spark's S3 connector.
s3: base
	@$(BIN)/python -m capstan.spark.setup.jars s3

## Fetch Spark's Avro source, which has from_avro.
avro: base
	@$(BIN)/python -m capstan.spark.setup.jars avro

# S3 server for tests, in a separate environment: its packages need older dependencies.
.PHONY: objects
objects: $(STAMPS)/objects

$(STAMPS)/objects: requirements-s3.lock | base
	@echo "setup: S3 server for tests, in .cache/objects"
	@$(PYTHON) -m venv --clear .cache/objects
	@$(UV_INSTALL) --python .cache/objects/bin/python -r requirements-s3.lock
	@touch $@

# Kafka broker for tests.
.PHONY: broker
broker: base
	@$(BIN)/python -m tests.support.kafka_broker

# YARN for tests of cluster mode.
.PHONY: yarn
yarn: base
	@$(BIN)/python -m tests.support.yarn_cluster

# Chromium for the tests of pages, where it can be installed; without it these are not tried.
.PHONY: browser
browser:
	@tests/install-browser || true

# Docker's own parser for docker/compose.yaml, without an engine.
.PHONY: compose
compose: base
	@$(BIN)/python -m tests.support.compose

# It shortens the start and the end of every Spark process.
.PHONY: classes
classes: base
	@$(BIN)/python -m capstan.spark.setup.class_archive

## Set up, then run the demo job on real flights in the lake ./lake.
demo: setup
	$(BIN)/capstan demo $(ARGS)

## Set up, then run Airflow on loopback until Ctrl-C (ARGS=--port=8080, --lake, --home, --database).
airflow: setup
	$(BIN)/python -m capstan.airflow.local $(ARGS)

PYTEST = PYTHONHASHSEED=$(SEED) $(BIN)/python -m pytest -n $(JOBS) --dist loadgroup --no-loadscope-reorder \
	  --hypothesis-seed=$(SEED)

## Set up, then run the core tests, a matter of minutes (SEED=random, JOBS=4, ARGS=... for pytest).
test: export HYPOTHESIS_PROFILE ?= quick
test: kafka broker classes compose browser
	$(PYTEST) $(ARGS)

# Crash tests that are repeated with their lakes on S3.
KILLED_ON_S3 := $(addprefix tests/crash/test_,capture_killed.py replay_killed.py maintain_killed.py)

## Set up, then run the remaining tests: further cases of the same rules.
test-all: kafka s3 broker objects classes compose browser
	CAPSTAN_TEST_LAKES=s3 $(PYTEST) -m "stored and not bench" $(KILLED_ON_S3)
	$(PYTEST) -m "rest and not nightly and not bench" $(ARGS)

## Set up, then run tests that take minutes each: clusters, S3, kills of executors; a small benchmark.
nightly: kafka s3 avro broker yarn objects classes
	PYTHONHASHSEED=$(SEED) $(BIN)/python -m pytest -m "nightly or bench" --hypothesis-seed=$(SEED) $(ARGS)
	CAPSTAN_TEST_LAKES=s3 $(BIN)/python -m pytest -m "not bench" $(KILLED_ON_S3)

# Number of kills, and the seed that selects them: make chaos N=200 SEED=7
N ?= 200

## Kill work, executors, a broker and Airflow's tasks at random, N times, and verify the result (N=200, SEED=7; resumes in ./chaos).
chaos: kafka broker
	$(BIN)/python -m tests.support.chaos --kills=$(N) --folder=chaos $(if $(filter file,$(origin SEED)),,--seed=$(SEED)) $(ARGS)

## Soak test: append N micro-batches and report the cost per decile (N=2000; in ./soak).
soak: setup
	$(BIN)/python -m tests.bench.soak --batches=$(if $(filter command line,$(origin N)),$(N),2000) --folder=soak $(ARGS)

## Run everything that must pass before a change lands: static, test, test-all.
check: static test test-all

## Run the static checks: fmt-check, lint, types, imports, site.
static: fmt-check lint types imports site

## Format the code.
fmt: setup
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --select I --fix $(CODE)

## Check that the code is formatted.
fmt-check: setup
	$(BIN)/ruff format --check $(CODE)

## Lint the code.
lint: setup
	$(BIN)/ruff check $(CODE)

## Check types.
types: setup
	$(BIN)/mypy

## Check the direction of imports between packages.
imports: setup
	$(BIN)/lint-imports

## Build the documentation to .cache/site; a link to nothing is an error.
site: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

## Write the pictures of the console in docs/images anew; .cache/pictures has all of its pages.
pictures: setup browser
	@mkdir -p .cache/pictures
	CAPSTAN_SCREENSHOTS=$(CURDIR)/.cache/pictures $(BIN)/python -m pytest tests/dags/test_console.py
	$(BIN)/python -m tests.support.doc_pictures .cache/pictures docs/images

## Build the jar of the log store for S3 from its source; the result is the same on every machine.
log-store: base
	$(BIN)/python -m tests.support.log_store_jar

# The class archive covers all jars, so connectors come before it.
## Run the benchmarks (ARGS=... for options).
bench: s3 objects setup
	$(BIN)/python -m tests.bench $(ARGS)

## Lock the dependencies (ARGS=--upgrade for newer versions).
lock: $(STAMPS)/uv
	@set -e; for name in requirements requirements-java requirements-s3 requirements-uv; do \
	  cp "$$name.lock" "$$name.lock.new"; \
	  $(BIN)/uv pip compile --quiet --python-version 3.11 --universal --generate-hashes \
	    --no-emit-index-url --no-header $(ARGS) "$$name.in" --output-file "$$name.lock.new"; \
	  mv "$$name.lock.new" "$$name.lock"; \
	done; echo "setup: locked"

## Remove everything that set-up and tools created; lakes are kept.
clean:
	rm -rf .venv .cache .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	rm -rf build lib/*.egg-info spark-warehouse metastore_db derby.log
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: python
python:
	@command -v $(PYTHON) >/dev/null 2>&1 || { \
	  echo "setup: $(PYTHON) not found; install Python 3.11, or name it: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { \
	  echo "setup: $(PYTHON) is not Python 3.11; name one that is: make PYTHON=/path/to/python3.11" >&2; exit 1; }

# A stamp is written last, so interrupted steps are repeated. A working environment is kept.
$(STAMPS)/venv: | python
	@echo "setup: .venv"
	@{ $(BIN)/python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' && \
	  $(PIP) --version; } >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv || { \
	  echo "setup: $(PYTHON) cannot create a venv (Debian: install python3.11-venv)" >&2; exit 1; }
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/uv: requirements-uv.lock $(STAMPS)/venv
	@$(PIP) install --require-hashes -r requirements-uv.lock
	@touch $@

$(STAMPS)/packages: requirements.lock $(STAMPS)/uv
	@echo "setup: packages of requirements.lock (about a minute)"
	@$(UV_INSTALL) --python $(BIN)/python -r requirements.lock
	@touch $@

$(STAMPS)/project: pyproject.toml $(STAMPS)/packages
	@echo "setup: capstan"
# Before it was called capstan-replay, the distribution had the name of the package.
	@! $(PIP) show capstan >/dev/null 2>&1 || $(PIP) uninstall --yes capstan
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@
