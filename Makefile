# Every target makes or updates the environment it needs; nothing has to be run first.
#
# Set-up leaves stamps in .venv. A stamp is written after the step it stands for, so a step that was
# interrupted runs again, and it is older than the files it was made from when these change.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install --quiet --constraint constraints.txt

# What testing needs beyond running: the tools, the notebook widget, and transformers as an oracle.
TEST_EXTRAS := hf,notebook,test
# A worker imports torch for itself, which costs seconds and memory: few of them, however many cores.
WORKERS ?= auto
PYTEST := $(PY) -m pytest
# More arguments for pytest: make test ARGS='-k trace -x'
ARGS ?=

# An editable install follows the sources by itself; its metadata come from these files.
METADATA := pyproject.toml constraints.txt src/pathsum/_version.py

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Threads that wait for each other should sleep: on a busy machine spinning costs many times the work.
export OMP_WAIT_POLICY := passive

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test test-slow test-browser check format types web bench peers wheel clean distclean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

setup: $(VENV)/.for-testing ## make .venv with everything that developing needs
	@echo "$(VENV) is ready"

demo: $(VENV)/.for-running ## run the demo
	@$(PY) -m pathsum demo

test: $(VENV)/.for-testing ## run the tests
	@$(PYTEST) -n $(WORKERS) --maxprocesses 4 $(ARGS)

# One process: slow tests may measure time or use all cores. Status 5 says that no test has the marker.
test-slow: $(VENV)/.for-testing ## run the tests marked slow
	@$(PYTEST) -m slow $(ARGS) || [ $$? -eq 5 ]

# Drives the system's Chromium. Without one the tests are skipped by name; with
# PATHSUM_REQUIRE_BROWSER=1 that is an error.
test-browser: $(VENV)/.for-testing ## drive the explorer and the report in Chromium
	@$(PYTEST) -m browser tests/browser $(ARGS)

# All four speak, whatever the first one says.
check: $(VENV)/.for-testing ## check format, lint, types and the order of imports
	@status=0; \
	$(PY) -m ruff format --check . || status=1; \
	$(PY) -m ruff check . || status=1; \
	$(PY) -m pyright --pythonpath $(PY) || status=1; \
	$(VENV)/bin/lint-imports --no-logo --cache-dir .cache/import-linter || status=1; \
	exit $$status

format: $(VENV)/.for-testing ## format the code and fix what can be fixed by itself
	@$(PY) -m ruff check --fix-only .
	@$(PY) -m ruff format .

types: $(VENV)/.for-running ## write the browser's types from the records
	@$(PY) -m pathsum.explorer.typescript web/src/generated/answers.ts

# Node is needed here and nowhere else: what it builds is committed.
web: types web/node_modules/.made ## check, test and build the front end into src/pathsum/bundle
	@cd web && npm run --silent check && npm test --silent && npm run --silent build

bench: $(VENV)/.for-testing ## run the benchmarks (make bench ARGS='--only NAME')
	@$(PY) -m benchmarks.run $(ARGS)

wheel: $(VENV)/.for-testing ## build, install elsewhere, run and inspect the wheel
	@$(PY) scripts/check_wheel.py

clean: ## remove what builds, tests and tools leave behind
	@rm -rf build dist .cache .hypothesis .pytest_cache .ruff_cache .import_linter_cache
	@find src tests benchmarks scripts -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## clean, and remove the environments
	@rm -rf $(VENV) .venv-peers-*

# --- the environment ------------------------------------------------------------------------------

# A Python that was upgraded or removed leaves a dangling link behind: then no stamp counts.
ifneq ($(shell test -x $(PY) && echo runs),runs)
.PHONY: $(VENV)/.made
endif

# An environment whose pip works is kept, whoever made it; a half-made one is made again.
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

# hatchling comes first and from the constraints, so that the build does not fetch one of its own.
$(VENV)/.for-running: $(VENV)/.made $(METADATA)
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

# --- peers ----------------------------------------------------------------------------------------

# Other libraries want other versions of what we share, so each has an environment of its own. They
# share torch with us, or a benchmark would compare two versions of torch.
PEERS := $(patsubst benchmarks/peers/%.txt,.venv-peers-%/.made,$(wildcard benchmarks/peers/*.txt))

peers: $(PEERS) ## make the environments of the libraries that benchmarks compare with

.venv-peers-%/.made: benchmarks/peers/%.txt $(VENV)/.made
	@echo "making .venv-peers-$*" >&2
	@$(PY) -m venv --clear .venv-peers-$*
	@grep '^torch==' constraints.txt > .venv-peers-$*/torch.txt
	@.venv-peers-$*/bin/python -m pip install --quiet --constraint .venv-peers-$*/torch.txt --requirement $<
	@touch $@
