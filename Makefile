# Everything a developer runs. `make serve` and `make test` need Python (3.11 or newer) and make only; they build .venv themselves.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# The first of these that is there, new enough, and can make environments. Another one: `make serve PYTHON=...`.
PYTHONS := python3.11 python3.12 python3.13 python3
IS_USABLE = -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2> /dev/null
PYTHON ?= $(shell for name in $(PYTHONS); do $$name $(IS_USABLE) && echo $$name && break; done)
define NO_PYTHON
No Python that can be used: 3.11 or newer is needed, with its modules venv and ensurepip. Looked for: $(or $(PYTHON),$(PYTHONS)).
  Debian, Ubuntu   apt install python3.11 python3.11-venv   (or what `python3 --version` says, if that is 3.11 or newer)
  Fedora           dnf install python3.11
  macOS            brew install python@3.11
  elsewhere        https://www.python.org/downloads/
One that has another name, or is not on the PATH, can be named: make serve PYTHON=/opt/python3.12/bin/python3
endef
export NO_PYTHON
BIN := .venv/bin
# Also where the environment forbids it: each process of each run would compile and rewrite every test again.
export PYTHONDONTWRITEBYTECODE :=
# The theme would print an advertisement for its successor.
export NO_MKDOCS_2_WARNING := 1
# Three stages of one environment: what a broker needs, that with the client, the tests and the tools beside it, and with Spark.
SERVE_STAMP := .venv/.installed-serve
STAMP := .venv/.installed
SPARK_STAMP := .venv/.installed-spark
DOCS_STAMP := .venv/.installed-docs
# Compiled at installation where there is a C compiler.
COMPILED := $(wildcard src/pybroker/*/*.c src/pybroker/*/*.h)
INSTALL = $(BIN)/python -m pip install --quiet --constraint requirements-dev.lock --editable
# The oldest that pyproject.toml allows.
OLDER_PYSPARK := .venv/older-pyspark/4.0.0
# Tests in parallel; two processes are enough for a small machine.
WORKERS ?= 2
LOCK_HEAD := \# Exact versions for development: `make .venv` installs with this file as a constraint. Renewed by `make lock`.
CONTAINER_LOCK_HEAD := \# Exact versions and hashes of a broker in a container. Written by `make lock` and `make lock-container`.
ARGS ?=
SEED ?= 1
SEEDS ?= 200
PULSAR_BASELINE_HOME ?= $(HOME)/.cache/pulsar-baseline
export PULSAR_BASELINE_HOME

.PHONY: help
help:
	@echo 'make serve                 run a broker on 127.0.0.1:6650 and 127.0.0.1:8080, data in ./data'
	@echo 'make cluster ARGS=...      ZooKeeper, three bookies and three brokers on this machine, data in ./data-cluster; needs Java 17 and Maven'
	@echo 'make test                  all lanes of tests but the long one'
	@echo 'make .venv                 the environment alone, with all that tests and tools need'
	@echo 'make lock                  renew the exact versions that .venv and a container are made of'
	@echo 'make lock-container        the versions of a container with their hashes, from those of .venv'
	@echo 'make generate              what is generated from proto/ and conf/'
	@echo 'make format                format and fix what the linter can fix'
	@echo 'make check                 format, lint, types, unit tests of the broker: before each commit'
	@echo 'make test-unit             one lane of the tests: rules and single parts, without brokers'
	@echo 'make test-broker           one lane: brokers in the test process, kills, random tests'
	@echo 'make test-clients          one lane: published clients, the command line, examples'
	@echo 'make test-analytics        one lane: columns, reading, Spark, lake, pipelines'
	@echo 'make test-long             the tests of all lanes that take minutes'
	@echo 'make docs                  the documentation site in build/site, with all links checked'
	@echo 'make package               sdist and wheel in dist, installed into an empty environment and used'
	@echo 'make ci                    all lanes, as in CI'
	@echo 'make test-older-pyspark    the tests with Spark, the long ones left out, with the oldest PySpark that is supported'
	@echo 'make fuzz SEED=n           the fuzz tests with one seed'
	@echo 'make test-both SEEDS=n     the unit tests of wire and model, and n seeds of the simulator, with the compiled core and with pure Python'
	@echo 'make sanitize ARGS=...     fuzz tests of the compiled core under the sanitizers of the compiler, ARGS="--seconds 600"'
	@echo 'make bench ARGS=...        benchmarks; those of restarts and worst inputs only when named: ARGS="--only recovery*,hostile*"'
	@echo 'make bench-compare ARGS=... beside Apache Pulsar, loaded by pulsar-perf: ratios; needs a JDK 17 and Maven; ARGS="--only shared,catch_up --reps 5"'
	@echo 'make bench-disturbed ARGS=... publishing beside catch-up, scrapes, compaction, 1,000 connections, 100 producers; ARGS="--only scrape"'
	@echo 'make churn ARGS=...        consumers that join, leave, stall and are killed, a minute of each type; what they saw is judged'
	@echo 'make backup-drills ARGS=... backups under load, loss of the disk, restore, comparison with every receipt; ARGS="--drills 50"'
	@echo 'make sample-directories    sample data directories that do not exist yet, made by the brokers of their commits'
	@echo 'make storm ARGS=...        official clients do everything at once; ARGS="--reference" beside the reference broker'
	@echo 'make simulate SEEDS=n      a whole broker, its clients and its crashes in one process, n times from SEED on; what failed is made small; ARGS="--cluster" several brokers'
	@echo 'make pipelines ARGS=...    a query of Spark and lakes are killed at random; what they wrote is judged; ARGS="--seconds 600"'
	@echo 'make bookie-faults         real bookies are killed and frozen 100 times below the client, and 100 times below topics; nothing confirmed is lost'
	@echo 'make cluster-faults        faults of real bookies, ZooKeeper and a broker under load, 200 from SEED on; all receipts are checked'
	@echo 'make cluster-rounds        random faults of three brokers, ZooKeeper and bookies under load of all kinds of clients, 200 from SEED on'
	@echo 'make service-gaps ARGS=... kills a broker and measures the gap in service of each topic; ARGS="--broker java", ARGS="--end sigterm" a rolling restart'
	@echo 'make test-cluster          the protocol tests on three real bookies, and the tests beside Java brokers and with several brokers that CI leaves out; needs Java 17 and Maven'
	@echo 'make fuzz-server ARGS=...  hostile frames, requests, WebSocket sessions, PROXY headers and tokens against a running broker'
	@echo 'make simulate-bugs         the simulator finds every bug that is planted for it; ARGS="--few 6" some of them, others each day'
	@echo 'make differential ARGS=... compare with the reference broker'
	@echo 'make clean                 remove environment, caches and build output'

# The stamp is what is compared with the inputs; .venv itself changes its date whenever something is written there.
.PHONY: .venv
.venv: $(STAMP)

$(BIN)/python:
	@test -n "$(PYTHON)" && $(PYTHON) $(IS_USABLE) || { echo "$$NO_PYTHON" >&2; exit 1; }
	$(PYTHON) -m venv .venv

$(SERVE_STAMP): pyproject.toml requirements-dev.lock $(COMPILED) | $(BIN)/python
	$(INSTALL) .
	$(BIN)/python -m compileall -q src  # a cold start compiles nothing
	touch $@

$(STAMP): pyproject.toml requirements-dev.lock $(COMPILED) | $(BIN)/python
	$(INSTALL) '.[client,test,dev,tables]'
	$(BIN)/python -m compileall -q src
	touch $(SERVE_STAMP) $@

$(SPARK_STAMP): $(STAMP)
	@java -version 2>&1 | grep -Eq 'version "(1[7-9]|[2-9][0-9])' || { echo 'Spark needs Java 17 or newer on the PATH: apt install openjdk-17-jre-headless, or https://adoptium.net/' >&2; exit 1; }
	$(INSTALL) '.[client,test,dev,spark,tables]'
	touch $@

# Beside the rest: only the site needs it.
$(DOCS_STAMP): $(STAMP)
	$(INSTALL) '.[docs]'
	touch $@

# Takes the newest versions that pyproject.toml allows.
.PHONY: lock
lock:
	rm -rf .venv
	echo '$(LOCK_HEAD)' > requirements-dev.lock
	$(MAKE) $(SPARK_STAMP) $(DOCS_STAMP)
	$(BIN)/python -m pip freeze --exclude-editable >> requirements-dev.lock
	touch $(STAMP) $(SPARK_STAMP) $(DOCS_STAMP)
	$(MAKE) lock-container

# With the hashes of all platforms, and with what builds the package.
.PHONY: lock-container
lock-container: $(STAMP)
	echo '$(CONTAINER_LOCK_HEAD)' > docker/requirements.lock
	$(BIN)/python -m piptools compile --quiet --no-header --no-annotate --generate-hashes --strip-extras --all-build-deps --allow-unsafe \
	    --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --constraint requirements-dev.lock --output-file - pyproject.toml \
	    >> docker/requirements.lock

.PHONY: generate
generate: $(STAMP)
	$(BIN)/python tools/generate_proto.py
	$(BIN)/python tools/generate_config.py

.PHONY: serve
serve: $(SERVE_STAMP)
	$(BIN)/pybroker serve --config conf/broker.conf --data ./data $(ARGS)

.PHONY: cluster
cluster: $(STAMP)
	@$(BIN)/python -m tools.local_cluster $(ARGS)

.PHONY: format
format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: lint
lint: $(STAMP)
	$(LANE) lint

.PHONY: check
check: $(STAMP)
	$(LANE) lint unit $(ARGS)

# tools/lanes.py says which tests belong to which lane; a run ends with the list of its lanes and of what was skipped.
LANE = $(BIN)/python -m tools.lanes --workers $(WORKERS)
# PySpark where it can be installed; else the tests with Spark are skipped, and the list of lanes says so.
TRY_SPARK = $(MAKE) --no-print-directory $(SPARK_STAMP) || true

.PHONY: test
test: $(STAMP)
	@$(TRY_SPARK)
	$(LANE) unit broker clients analytics $(ARGS)

.PHONY: test-unit test-broker test-clients
test-unit test-broker test-clients: $(STAMP)
	$(LANE) $(@:test-%=%) $(ARGS)

.PHONY: test-analytics test-long
test-analytics test-long: $(STAMP)
	@$(TRY_SPARK)
	$(LANE) $(@:test-%=%) $(ARGS)

.PHONY: docs
docs: $(DOCS_STAMP)
	$(LANE) docs

.PHONY: package
package: $(STAMP)
	$(LANE) package

.PHONY: ci
ci: $(STAMP) $(DOCS_STAMP)
	@$(TRY_SPARK)
	$(LANE) lint docs package unit pure broker clients analytics simulate long $(ARGS)

# In front of the PySpark of the environment, for Spark's workers too: they take over PYTHONPATH.
$(OLDER_PYSPARK)/.installed: | $(SPARK_STAMP)
	rm -rf $(OLDER_PYSPARK)  # pip leaves what is there as it is, and what was cut off with it
	$(BIN)/python -m pip install --quiet --no-deps --target $(OLDER_PYSPARK) pyspark==$(notdir $(OLDER_PYSPARK))
	touch $@

.PHONY: test-older-pyspark
test-older-pyspark: $(OLDER_PYSPARK)/.installed
	PYTHONPATH=$(abspath $(OLDER_PYSPARK)) $(BIN)/python -m pytest tests/spark -m 'not long' $(ARGS)

.PHONY: fuzz
fuzz: $(STAMP)
	test ! -d tests/fuzz || FUZZ_EXAMPLES=$${FUZZ_EXAMPLES:-2000} $(BIN)/python -m pytest tests/fuzz --hypothesis-seed=$(SEED) $(ARGS) || test $$? -eq 5

.PHONY: sanitize
sanitize: $(STAMP)
	$(BIN)/python -m tools.sanitize --seed $(SEED) $(ARGS)

.PHONY: test-both
test-both: $(STAMP)
	$(BIN)/python -m tools.both_builds --workers $(WORKERS) --seed $(SEED) --seeds $(SEEDS) $(ARGS)

.PHONY: bench
bench: $(STAMP)
	$(BIN)/python -m benchmarks.bench $(ARGS)

.PHONY: bench-compare
bench-compare: $(STAMP)
	@$(BIN)/python -m benchmarks.compare $(ARGS)

.PHONY: bench-disturbed
bench-disturbed: $(STAMP)
	@$(BIN)/python -m benchmarks.fairness $(ARGS)

.PHONY: churn
churn: $(STAMP)
	$(BIN)/python -m tests.churn.run --seed $(SEED) $(ARGS)

.PHONY: backup-drills
backup-drills: $(STAMP)
	$(BIN)/python -m tests.crash.backup_drill --seed $(SEED) $(ARGS)

.PHONY: sample-directories
sample-directories: $(STAMP)
	$(BIN)/python -m tests.upgrade.make_samples $(ARGS)

.PHONY: storm
storm: $(STAMP)
	$(BIN)/python -m tests.storm.run --seed $(SEED) $(ARGS)

.PHONY: simulate
simulate: $(STAMP)
	$(BIN)/python -m tests.simulate --seed $(SEED) --seeds $(SEEDS) $(ARGS)

.PHONY: pipelines
pipelines: $(SPARK_STAMP)
	$(BIN)/python -m tests.pipelines.run --seed $(SEED) $(ARGS)

.PHONY: fuzz-server
fuzz-server: $(STAMP)
	$(BIN)/python -m tests.fuzz_server.run --seed $(SEED) $(ARGS)

.PHONY: simulate-bugs
simulate-bugs: $(STAMP)
	$(BIN)/python -m tests.simulate.planted $(ARGS)

REQUIRE_JAVA = java -version 2>&1 | grep -Eq 'version "(1[7-9]|[2-9][0-9])' && command -v mvn > /dev/null || { \
    echo 'Real bookies need Java 17 or newer and Maven on the PATH: apt install openjdk-17-jdk-headless maven' >&2; exit 1; }
FAULTS ?= 100
.PHONY: bookie-faults
bookie-faults: $(STAMP)
	FAULTS=$(FAULTS) STORE_FAULTS=$(FAULTS) FAULT_SEED=$(SEED) $(BIN)/python -m pytest tests/bookkeeper/test_faults.py tests/bookkeeper/test_store_faults.py -s $(ARGS)

# In parts, so that one part can be repeated with its seed.
CLUSTER_FAULTS ?= 200
CLUSTER_FAULTS_PART := 50
.PHONY: cluster-faults
cluster-faults: $(STAMP)
	@$(REQUIRE_JAVA)
	for part in $$(seq 0 $$((($(CLUSTER_FAULTS) - 1) / $(CLUSTER_FAULTS_PART)))); do \
	    FAULTS=$(CLUSTER_FAULTS_PART) FAULT_SEED=$$(($(SEED) + part)) $(BIN)/python -m pytest tests/bookkeeper/test_broker_faults.py -s $(ARGS) \
	        || exit 1; \
	done

# In parts, so that one part can be repeated with its seed.
CLUSTER_ROUNDS ?= 200
CLUSTER_ROUNDS_PART := 20
.PHONY: cluster-rounds
cluster-rounds: $(STAMP)
	@$(REQUIRE_JAVA)
	for part in $$(seq 0 $$((($(CLUSTER_ROUNDS) - 1) / $(CLUSTER_ROUNDS_PART)))); do \
	    ROUNDS=$(CLUSTER_ROUNDS_PART) ROUNDS_SEED=$$(($(SEED) + part)) $(BIN)/python -m pytest tests/bookkeeper/test_cluster_rounds.py -s $(ARGS) \
	        || exit 1; \
	done

.PHONY: service-gaps
service-gaps: $(STAMP)
	@$(REQUIRE_JAVA)
	$(BIN)/python -m tests.bookkeeper.service_gaps $(ARGS)

.PHONY: test-cluster
test-cluster: $(STAMP)
	@$(REQUIRE_JAVA)
	TEST_LEDGERS=bookies $(BIN)/python -m pytest tests/protocol tests/bookkeeper -n $(WORKERS) --dist loadfile -m 'not long' $(ARGS)
	$(BIN)/python -m pytest tests/bookkeeper tests/clients tests/fuzz_server -n $(WORKERS) --dist loadfile -m cluster $(ARGS)

.PHONY: differential
differential: $(STAMP)
	$(BIN)/python -m tests.differential.run $(ARGS)

.PHONY: clean
clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist src/*.egg-info
	rm -f src/pybroker/*/*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
