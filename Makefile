# `make demo` and `make test` set up everything themselves; nothing but Python >= 3.11 and make is needed.
# The environment lives in .venv; packages come through uv, whose cache makes every later clone a matter of seconds.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
UV     := 0.13.7
PINS   := constraints/constraints.txt

.PHONY: help setup demo serve test test-fast test-long rehearse lint docs bench bench-quick clean
.DEFAULT_GOAL := help

help:           ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 16

setup: $(VENV)/.ready  ## make the environment in .venv with the pinned versions

$(VENV)/.ready: pyproject.toml $(PINS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "otpt needs Python 3.11 or newer, but $(PYTHON) is " + sys.version.split()[0] + "; set PYTHON=…")'
	@echo "Setting up $(VENV) (torch is large: some minutes the first time on a machine) …"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV)
	@$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --constraint $(PINS) --editable '.[dev]'
	@touch $@

demo: setup     ## set up, then the main methods on the embedded model and bench (two minutes)
	@$(BIN)/otpt demo

serve: setup    ## set up, then predictions over HTTP with the embedded model; prints the address
	@$(BIN)/otpt serve

test: setup     ## set up, then run the tests (some minutes)
	@$(BIN)/python -m pytest -n auto --dist worksteal -m 'not long'

test-fast: setup  ## the quick tests only (a minute)
	@$(BIN)/python -m pytest -n auto --dist worksteal -m 'not slow and not long'

test-long: setup  ## what takes too long for every change: faults, clusters, browsers, compilers, imitated processors
	@$(BIN)/python -m pytest -n auto --dist loadfile -m long
	@$(BIN)/python -m tests.processors

rehearse: setup ## the paper from an empty disk, with small archives and models (build/rehearsal; some minutes)
	@rm -rf build/rehearsal && mkdir -p build/rehearsal
	@$(BIN)/python -W ignore -m tests.rehearsal build/rehearsal

lint: setup     ## ruff, mypy, a strict build of the documentation, generated tables and pages, spelling
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/python docs/tables.py README.md docs/methods.md docs/reference/methods.md --check
	@$(BIN)/python docs/command_line.py docs/reference/command-line.md --check
	@$(BIN)/python docs/paper.py --check
	@$(BIN)/codespell README.md CONTRIBUTING.md CHANGELOG.md SECURITY.md docs/*.md src
	@$(BIN)/zensical build --strict --clean --config-file mkdocs.yml

docs: setup     ## serve the documentation on localhost
	@$(BIN)/zensical serve --config-file mkdocs.yml

bench: setup    ## literal way against engine, real sizes (about 50 minutes on 2 cores)
	@$(BIN)/python -m benchmarks

bench-quick: setup  ## the same at reduced size, within 5 minutes
	@$(BIN)/python -m benchmarks --quick

clean:          ## remove the environment and everything built
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache
