# make demo    set up, and run the main job
# make test    set up, and run the tests (under five minutes)
# make check   lint, types, import rules
# make bench   this project measured against its peers
# make test-slow  the tests with real models, browsers and crashes at random moments

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-again check bench clean

help:
	@sed -n 's/^# \(make .*\)/\1/p' $(MAKEFILE_LIST)

# pip compiles byte-code when it installs: without it, start-up takes twice as long.
$(VENV)/.demo: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e .
	$(BIN)/python -m compileall -q benchwright domains blocks tasks flows deployments cli recipes
	touch $@

$(VENV)/.dev: $(VENV)/.demo
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev,gpu,hub,ssh,nightly]'
	touch $@

demo: $(VENV)/.demo
	$(BIN)/benchwright run retrieval-index --because 'a demo may be watched again'

# Tests of a file stay in one process: the fixtures that cost seconds are shared.
test: $(VENV)/.dev
	$(BIN)/pytest -q -n 2 --dist loadfile -m "not slow"

test-slow: $(VENV)/.dev
	$(BIN)/pytest -q -n 2 --dist loadfile -m slow

# Once more, one at a time, what failed in the run before: a fault fails again, a machine that was
# busy at that moment doesn't.
test-again: $(VENV)/.dev
	$(BIN)/pytest -q --last-failed --last-failed-no-failures none

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/orchestration.py
	$(BIN)/python benchmarks/belief.py
	$(BIN)/python benchmarks/supervision.py
	$(BIN)/python benchmarks/nightly.py

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
