# Needs Python 3.11 and make; everything else is fetched into .venv and .cache.

PYTHON ?= python3.11
BIN    := .venv/bin
STAMPS := .venv/stamps
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet
# Passed on to the program that a target runs: make bench ARGS=--rows=1000000
ARGS   ?=
# Processes for the tests; 0 runs them in pytest's own. Each waits for others two fifths of its
# time, so that four keep two cores at work. Spark's tests are four groups, one session each.
JOBS   ?= 4
# The examples and the order of this run. One for all, so that a change lands or not for what it is;
# SEED=random draws another one, and prints it.
SEED   ?= 2013
ifeq ($(SEED),random)
override SEED := $(shell od -An -N2 -tu2 /dev/urandom | tr -d ' ')
endif
CODE   := lib tests dags spark_apps
# Wherever it is set, each process compiles all it imports anew: tests start some hundred of them.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help setup kafka s3 demo airflow test test-all test-both nightly chaos soak check static fmt fmt-check lint types imports errors bench lock clean

## Show this list.
help:
	@awk '/^## / { text = substr($$0, 4); next } \
	  /^[a-z][a-z0-9-]*:/ && text { split($$1, name, ":"); printf "  make %-10s %s\n", name[1], text } \
	  { text = "" }' $(firstword $(MAKEFILE_LIST))

# What all else needs. The class archive is of all jars, and so comes after those of connectors.
.PHONY: base
base: $(STAMPS)/project
	@$(BIN)/python -m capstan.spark.java
	@$(BIN)/python -m capstan.spark.jars

## Set up what is missing: .venv, packages, Java, Delta's jars, the class archive.
setup: base classes

## Fetch what Spark needs to read and write Kafka.
kafka: base
	@$(BIN)/python -m capstan.spark.jars kafka

## Fetch what Spark needs to read from S3.
s3: base
	@$(BIN)/python -m capstan.spark.jars s3

# The tests have an S3 of their own. Its packages want older ones than the project has.
.PHONY: objects
objects: $(STAMPS)/objects

$(STAMPS)/objects: requirements-s3.lock | base
	@echo "setup: an S3 for tests, in .cache/objects"
	@$(PYTHON) -m venv --clear .cache/objects
	@.cache/objects/bin/python -m pip --disable-pip-version-check --quiet install --require-hashes -r requirements-s3.lock
	@touch $@

# The tests have a broker of their own.
.PHONY: broker
broker: base
	@$(BIN)/python -m tests.support.kafka_broker

# Docker's own reading of docker/compose.yaml, without an engine.
.PHONY: compose
compose: base
	@$(BIN)/python -m tests.support.compose

# Every Spark starts and ends sooner by it.
.PHONY: classes
classes: base
	@$(BIN)/python -m capstan.spark.class_archive

## Set up, then run the main job on real flights in the lake ./lake.
demo: setup
	$(BIN)/capstan demo $(ARGS)

## Set up, then run Airflow on loopback until Ctrl-C (ARGS=--port=8080, --lake, --home, --database).
airflow: setup
	$(BIN)/python -m capstan.airflow.local $(ARGS)

PYTEST = PYTHONHASHSEED=$(SEED) $(BIN)/python -m pytest -n $(JOBS) --dist loadgroup --no-loadscope-reorder \
	  --hypothesis-seed=$(SEED)

## Set up, then run the tests of every room, for minutes (SEED=random for other examples, JOBS=4, ARGS=... for pytest).
test: export HYPOTHESIS_PROFILE ?= quick
test: kafka broker classes compose
	$(PYTEST) $(ARGS)

## Set up, then run the rest of the tests: further cases of what make test shows.
test-all: kafka broker classes compose
	$(PYTEST) -m "rest and not nightly and not bench" $(ARGS)

## Set up, then run test and test-all at once, so that what both need is set up once.
test-both: kafka broker classes compose
	$(PYTEST) -m "not nightly and not bench" $(ARGS)

## Set up, then run the tests that take minutes each: clusters, S3, kills of what is not a driver; the benchmark in small.
nightly: kafka s3 broker objects classes
	PYTHONHASHSEED=$(SEED) $(BIN)/python -m pytest -m "nightly or bench" --hypothesis-seed=$(SEED) $(ARGS)

# How many kills, and the seed that chooses them: make chaos N=200 SEED=7
N ?= 200

## Kill work, executors, a broker and tasks of Airflow at random, N times over, and look at what is left (N=200, SEED=7; goes on in ./chaos).
chaos: kafka broker
	$(BIN)/python -m tests.support.chaos --kills=$(N) --folder=chaos $(if $(filter file,$(origin SEED)),,--seed=$(SEED)) $(ARGS)

## Let a stream grow by N micro-batches, and tell what each of ten stages costs (N=2000; in ./soak).
soak: setup
	$(BIN)/python -m tests.bench.soak --batches=$(if $(filter command line,$(origin N)),$(N),2000) --folder=soak $(ARGS)

## Everything that must hold before a change lands: static, test-both.
check: static test-both

## The checks that run no test: fmt-check, lint, types, imports.
static: fmt-check lint types imports

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

## Check that imports between the rooms keep their direction.
imports: setup
	$(BIN)/lint-imports

## Write docs/errors.md again, from the code.
errors: setup
	$(BIN)/python -m tests.support.error_catalogue

## Run the benchmarks (ARGS=... for them).
bench: setup
	$(BIN)/python -m tests.bench $(ARGS)

## Lock the packages again, in a throw-away environment (ARGS=--upgrade for newer ones).
lock: python
	@set -e; folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; \
	echo "setup: uv in a throw-away environment"; \
	$(PYTHON) -m venv "$$folder/venv"; \
	"$$folder/venv/bin/python" -m pip --disable-pip-version-check --quiet install uv; \
	for name in requirements requirements-java requirements-s3; do \
	  cp "$$name.lock" "$$folder/$$name.lock"; \
	  "$$folder/venv/bin/uv" pip compile --quiet --python-version 3.11 --universal --generate-hashes \
	    --no-emit-index-url --no-header $(ARGS) "$$name.in" --output-file "$$folder/$$name.lock"; \
	  mv "$$folder/$$name.lock" "$$name.lock"; \
	done; echo "setup: locked"

## Remove what set-up and the tools made; lakes stay.
clean:
	rm -rf .venv .cache .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	rm -rf build lib/*.egg-info spark-warehouse metastore_db derby.log
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: python
python:
	@command -v $(PYTHON) >/dev/null 2>&1 || { \
	  echo "setup: there is no $(PYTHON); install Python 3.11, or name it: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { \
	  echo "setup: $(PYTHON) does not run as Python 3.11; name one that does: make PYTHON=/path/to/python3.11" >&2; exit 1; }

# A stamp is written last: what was interrupted is done again. An environment that works is kept.
$(STAMPS)/venv: | python
	@echo "setup: .venv"
	@{ $(BIN)/python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' && \
	  $(PIP) --version; } >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv || { \
	  echo "setup: $(PYTHON) cannot make a venv (Debian: install python3.11-venv)" >&2; exit 1; }
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/packages: requirements.lock $(STAMPS)/venv
	@echo "setup: packages of requirements.lock (about a minute)"
	@$(PIP) install --require-hashes -r requirements.lock
	@touch $@

$(STAMPS)/project: pyproject.toml $(STAMPS)/packages
	@echo "setup: capstan itself"
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@
