# `make` lists the targets: all commands for this repository, for developers and for CI.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet

# Variables that targets pass on: INPUT and STAY to the demo, WINDOWS to the pipeline, MINUTES to the verifier,
# ARGS to the broker, the tests, the benchmarks and the verifier.
INPUT   ?=
STAY    ?=
WINDOWS ?=
ARGS    ?=
export INPUT STAY WINDOWS

# The simulation runs SEEDS seeds of MINUTES virtual minutes each, or repeats one SEED.
SEEDS   ?= 100
SEED    ?=
sim: MINUTES ?= 3
chaos: MINUTES ?= 20

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup setup-dev wheel demo pipeline serve cluster check test test-all test-servers bench bench-cluster sim chaos lint \
  format docs clean

help: ## Show this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.server ## Make .venv with the requirements of a standalone broker.

wheel: $(VENV)/bin/python ## Build dist/tms_broker-VERSION-py3-none-any.whl, to install elsewhere.
	@rm -f dist/tms_broker-*.whl
	@$(PIP) wheel --no-deps --wheel-dir dist .
	@echo "built $$(ls dist/tms_broker-*.whl); install it: pip install '$$(ls dist/tms_broker-*.whl)[server]'"

demo: setup ## Publish a real log, tail it, compare, restart, read again (INPUT=file, STAY=yes).
	@$(BIN)/python scripts/demo.py

pipeline: $(VENV)/.spark ## Count audit events with Spark as they are published, and again in a batch (WINDOWS=3).
	@$(BIN)/python -m scripts.pipeline

serve: setup ## Serve on port 8080 with the data in ./data until Ctrl-C.
	@exec $(BIN)/broker serve $(ARGS)

cluster: $(VENV)/.cluster ## Run a cluster on this machine until Ctrl-C: three nodes on ports 8081-8083.
	@$(BIN)/python -m broker.local.servers fetch hbase
	@exec $(BIN)/broker cluster up $(ARGS)

check: lint ## Check format, style and types, and run the unit tests, within a minute.
	@$(BIN)/python -m pytest -n 3 -p no:schemathesis --hypothesis-profile=quick -m "not slow and not nightly" \
	  tests/unit tests/tidy $(ARGS)

test: setup-dev ## Set up everything for the tests, and run all except the nightly ones.
	@$(MAKE) --no-print-directory -j 2 test-servers lint SERVERS="$(SERVERS)"
	@$(BIN)/python -m pytest -n 3 -m "not nightly" $(ARGS)

test-all: setup-dev ## Run every test, also the nightly ones: more than an hour.
	@$(MAKE) --no-print-directory -j 2 test-servers lint SERVERS="$(SERVERS)"
	@$(BIN)/python -m pytest -n 3 --timeout=3600 --hypothesis-profile=thorough $(ARGS)

# Keep compiled modules. Otherwise each worker, and each process that a test starts, compiles them again.
unexport PYTHONDONTWRITEBYTECODE

# SERVERS names the servers that a target needs; empty means all. The peers of the benchmarks take a minute to
# build. docker-compose takes minutes, so only CI builds it: there a test may not be skipped for lack of it.
test: SERVERS = tms tephra hbase toxiproxy spark postgresql $(if $(filter true,$(CI)),compose)
bench: SERVERS = tms kafka redis

test-servers: setup-dev
	@$(BIN)/python -m tests.kit.servers fetch --if-possible $(SERVERS)

bench: test-servers ## Measure this broker beside Kafka, Redis and the original.
	@$(BIN)/python -m benchmarks $(ARGS)

sim: setup-dev ## Run seeds of the simulated cluster (SEEDS=1000 MINUTES=10), or one again (SEED=77).
	@$(BIN)/python -m tests.kit.seeds --minutes $(MINUTES) \
	  $(if $(SEED),--seed $(SEED),--seeds $(SEEDS)) $(ARGS)

bench-cluster: SERVERS = hbase
bench-cluster: test-servers ## Measure a cluster beside HBase alone.
	@$(BIN)/python -m benchmarks.cluster $(ARGS)

chaos: SERVERS = hbase toxiproxy
chaos: test-servers ## Play every failure case, and mixed faults for MINUTES=20 (ARGS to chaos run).
	@$(BIN)/python -m chaos case all
	@$(BIN)/python -m chaos run --nemesis mix --minutes $(MINUTES) $(ARGS)

lint: setup-dev ## Check format, style and types.
	@$(BIN)/ruff format --check --quiet . || { echo "run: make format"; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary

format: setup-dev ## Format the code and sort its imports.
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format --quiet .

docs: setup-dev ## Write the pages that are generated from the code.
	@$(BIN)/python scripts/gen_docs.py

clean: ## Remove .venv, caches and build products; data and fetched servers stay.
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find broker chaos tests scripts examples benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

setup-dev: $(VENV)/.dev

LEVELDB := plyvel has no wheel for Python 3.13 and newer, so pip compiles it (Debian: apt-get install g++ python3-dev \
  libleveldb-dev).

# A stamp is a file with the time of an installation. A newer pyproject.toml makes Make install again.

$(VENV)/.server: pyproject.toml | $(VENV)/bin/python
	@echo "installing the broker into $(VENV)"
	@$(PIP) install --editable '.[server]' || { \
	  echo "pip could not install the packages of pyproject.toml; its reason is above."; \
	  echo "It needs a package index that it can reach (see: $(BIN)/pip config list)."; \
	  echo "If it is about plyvel or leveldb/db.h: $(LEVELDB)"; exit 1; }
	@touch $@

$(VENV)/.cluster: pyproject.toml $(VENV)/.server
	@echo "installing the requirements of a cluster's node into $(VENV)"
	@$(PIP) install --editable '.[cluster]'
	@touch $@

$(VENV)/.spark: pyproject.toml $(VENV)/.server
	@echo "installing Spark into $(VENV): half a gigabyte"
	@$(PIP) install --editable '.[arrow,spark]'
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.server
	@echo "installing the requirements of the tests into $(VENV)"
	@$(PIP) install --editable '.[dev]'
	@touch $@ $(VENV)/.cluster $(VENV)/.spark

$(VENV)/bin/python:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "Python 3.11 or newer is needed (Debian: apt-get install python3 python3-venv)."; \
	  echo "If it has another name: make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Python 3.11 or newer is needed; $(PYTHON) is $$($(PYTHON) --version 2>&1)."; \
	  echo "Name another: make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "Python's venv module is missing (Debian: apt-get install python3-venv)."; exit 1; }
	@$(PYTHON) -m venv $(VENV)
