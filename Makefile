# `make demo` and `make test` need nothing but make and a Python of 3.11 or newer:
# each makes .venv, installs what it uses there, and runs.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST_ARGS ?=
BENCH ?= full
BENCH_ARGS ?=

# Without byte code every worker that a test starts would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

# What `make test-newest` runs, and `make faults` with fresh draws.
SHORT := tests/algebra tests/datasets tests/property tests/values

# What `make examples` runs, and `make test` does not.
EXAMPLES := tests/examples

.PHONY: help demo examples docs site test test-modes test-newest faults lint types format \
  build-files bench notebook clean

help:
	@echo "make demo    train, kill, resume, compare: the whole path on real data"
	@echo "make examples   the tests of examples and notebooks"
	@echo "make docs    the documentation as a site in docs/_build/site, and all that its pages show"
	@echo "make test    all other tests                 (PYTEST_ARGS='-k name' to choose)"
	@echo "make test-modes   the same, all cases in each start mode and kind of memory of the engine"
	@echo "make test-newest  a short form of it on the newest Python that is installed"
	@echo "make faults  the long forms of the campaigns in tests/faults: an hour"
	@echo "make lint    ruff                            make types   mypy"
	@echo "make format  rewrite in the project's style  make bench   compare with peers (BENCH=quick: 3 minutes)"

demo: $(VENV)/.installed-examples
	$(BIN)/python examples/demo.py

# The demo, all other examples, the notebooks, and jobs of several processes: each killed, resumed
# and compared.
examples: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n auto --dist worksteal $(PYTEST_ARGS) $(EXAMPLES)

# What the pages show runs in `make test`, too; `make site` only builds them.
docs: site
	$(BIN)/python -m tools.snippets

site: $(VENV)/.installed-docs
	$(BIN)/python -m tools.site

test: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n auto --dist worksteal --ignore=$(EXAMPLES) $(PYTEST_ARGS)

# All of `tests/cases` in each way of the engine; `make test` runs one of them for each case.
test-modes:
	GRAIN_JAX_TEST_MODES=all $(MAKE) test

# The newest Python that is here, if it is newer than $(PYTHON): a short form of the suite on it.
test-newest:
	@newest="$$($(PYTHON) tools/newest_python.py)" && if [ -n "$$newest" ]; then \
	  $(MAKE) test PYTHON="$$newest" VENV=.venv-newest PYTEST_ARGS="$(PYTEST_ARGS) $(SHORT)"; \
	else echo "no newer Python than $$($(PYTHON) --version) is here"; fi

faults: $(VENV)/.installed-test
	$(BIN)/python -m pytest -q -n auto --hypothesis-profile=fresh $(SHORT)
	$(BIN)/python -m tests.faults.worker_kills
	$(BIN)/python -m tests.faults.edited_kills
	$(BIN)/python -m tests.faults.forks
	$(BIN)/python -m tests.faults.trainer_kills
	$(BIN)/python -m tests.faults.mutated_states
	$(BIN)/python -m tests.faults.random_pipelines
	$(BIN)/python -m tests.faults.interrupts
	$(BIN)/python -m tests.faults.many_processes
	$(BIN)/python -m tests.faults.soak

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

format: $(VENV)/.installed-dev build-files
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

build-files: $(VENV)/.installed-dev
	$(BIN)/python -m tools.build_files

# BENCH=quick and BENCH=best are shorter; BENCH_ARGS='--workloads jpeg' chooses.
bench: $(VENV)/.installed-bench
	$(BIN)/python -m tests.benchmarks.runner $(BENCH) $(BENCH_ARGS)

clean:
	rm -rf $(VENV) .venv-newest .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis

# One stamp per set of extras; a changed pyproject.toml installs again.
$(VENV)/.installed-%: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit( \
	  "grain_jax needs Python 3.11 or newer and $(PYTHON) is " + sys.version.split()[0] + \
	  "; name another one: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)

.PRECIOUS: $(VENV)/bin/python $(VENV)/.installed-%
